// Package natstest runs nats-servers for tests: real ones, in this process.
package natstest

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Start runs a server at a free port of 127.0.0.1 until the test ends. With JetStream it keeps its streams where the
// options say, or in a directory of the test's.
func Start(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	if o.JetStream && o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	ns := up(t, o)
	t.Cleanup(func() { down(ns) })
	return ns
}

// FreeAddress is an address that nobody listens on just now.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func up(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	ns, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatalf("nats-server %s is not ready", ns.Name())
	}
	return ns
}

func down(ns *server.Server) {
	ns.Shutdown()
	ns.WaitForShutdown()
}
