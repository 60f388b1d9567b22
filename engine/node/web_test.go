package node

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Clients that open connections to /healthz and leave them open do not use up the engine's files. When they close them, others are served.
func TestWatchersLeaveFiles(t *testing.T) {
	t.Parallel()
	url, closed, err := newWeb().listen(&Options{HTTP: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	address := strings.TrimPrefix(url, "http://")
	ask := func() (c net.Conn, served bool) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", address)
		_, err = c.Read(make([]byte, 1))
		return c, err == nil
	}
	var held []net.Conn
	served := 0
	for range maxHTTPConns + 10 {
		c, ok := ask()
		held = append(held, c)
		if ok {
			served++
		}
	}
	if served != maxHTTPConns {
		t.Errorf("%d of %d connections were served", served, len(held))
	}
	for _, c := range held {
		c.Close()
	}
	natstest.Eventually(t, "a connection is served again", func() bool {
		c, ok := ask()
		c.Close()
		return ok
	})
}
