package servers

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// If a name stands for several machines, silent ones among them do not keep an engine from the others.
func TestSilentAddress(t *testing.T) {
	answers, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	port := answers.Addr().(*net.TCPAddr).Port
	silent(t, [4]byte{127, 0, 0, 2}, port)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	c, err := dialOne(ctx, "tcp", []string{"127.0.0.2", "127.0.0.1"}, strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// What a connection has not sent when it is closed is discarded, and the server sees that it was reset. Otherwise the system would go on trying
// to send it, and a command that its sender has long repeated elsewhere would be carried out once more.
func TestUnsentIsDiscarded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialer{}.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	c.Close()
	if _, err := accepted.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server sees %v", err)
	}
}

// silent makes an address silent to those who connect, like that of a machine without power: by a socket with a full backlog.
func silent(t *testing.T, ip [4]byte, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: ip, Port: port}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(net.IP(ip[:]).String(), strconv.Itoa(port)), 20*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
	}
}
