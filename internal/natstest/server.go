// Package natstest runs real nats-servers for tests, in the test's process.
package natstest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Start runs a server on a free port of 127.0.0.1 until the test ends. With JetStream it keeps its streams in the options'
// StoreDir, or in a temporary directory of the test.
func Start(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	if o.JetStream && o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	ns := startServer(t, o)
	t.Cleanup(func() { stopServer(ns) })
	return ns
}

// ParseOptions returns the options that the text of a configuration file stands for.
func ParseOptions(t testing.TB, config string) *server.Options {
	t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString(config); err != nil {
		t.Fatal(err)
	}
	return o
}

// Eventually waits for a condition that the machine's load may delay but not prevent, for at most a minute.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Receive returns the next value of a channel, or the zero value once the channel is closed. It waits for at most a minute.
func Receive[T any](t testing.TB, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
	return value
}

// A program gets one of these ports only if it asks for just that one. If it asks for any, Linux chooses one from 32768 on.
const (
	firstPort = 20_000
	lastPort  = 32_000
	blockSize = 100
)

// ports are those that this process may give to its tests. They come in blocks. A process takes a block by listening on its first port for
// as long as it lives, so that tests of other processes get none of it, not even a port on which nobody listens yet, or at the moment.
var ports struct {
	sync.Mutex
	free   []int
	blocks []net.Listener
}

// FreePort returns a port of 127.0.0.1 on which nobody listens at the moment. Until the test ends, no connection gets it as its own
// port, and no other test gets it.
func FreePort(t testing.TB) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for {
		if len(ports.free) == 0 {
			takeBlock(t)
		}
		port := ports.free[0]
		ports.free = ports.free[1:]
		l, err := net.Listen("tcp", local(port))
		switch {
		case err == nil:
			l.Close()
			t.Cleanup(func() {
				ports.Lock()
				defer ports.Unlock()
				ports.free = append(ports.free, port)
			})
			return port
		case !errors.Is(err, syscall.EADDRINUSE):
			t.Fatal(err)
		}
	}
}

// takeBlock takes a block at random, of those that no process has.
func takeBlock(t testing.TB) {
	t.Helper()
	for _, i := range rand.Perm((lastPort - firstPort) / blockSize) {
		first := firstPort + i*blockSize
		l, err := net.Listen("tcp", local(first))
		switch {
		case err == nil:
			ports.blocks = append(ports.blocks, l)
			for port := first + 1; port < first+blockSize; port++ {
				ports.free = append(ports.free, port)
			}
			return
		case !errors.Is(err, syscall.EADDRINUSE):
			t.Fatal(err)
		}
	}
	t.Fatalf("other processes have all ports from %d to %d", firstPort, lastPort)
}

// FreeAddress returns an address with a port from FreePort.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return local(FreePort(t))
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func startServer(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	ns, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatalf("nats-server %s is not ready", ns.Name())
	}
	return ns
}

func stopServer(ns *server.Server) {
	ns.Shutdown()
	ns.WaitForShutdown()
}
