package node

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Clients that open connections to /healthz and leave them open do not use up the engine's files. When they close them, others are served.
func TestWatchersLeaveFiles(t *testing.T) {
	t.Parallel()
	w := newWeb()
	url, closed, err := w.listen(&Options{HTTP: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
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
	if served != maxHTTPConns || w.refused.Get() != 10 {
		t.Errorf("%d of %d connections were served, and %d count as refused", served, len(held), w.refused.Get())
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

// pipes listens for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, open := <-p; open {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A client that stops in the middle of a request, or does not read, loses its connection: others may need it. A profile may take longer.
func TestSlowHTTPClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := make(pipes)
		server := newWeb().server(&Options{Profiles: true, Logger: slog.New(slog.DiscardHandler)})
		go server.Serve(listener)
		// ask returns what comes in answer to a request, and when the connection was closed.
		ask := func(request string, reads bool) (answer string, after time.Duration) {
			began := time.Now()
			c, served := net.Pipe()
			listener <- served
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = io.WriteString(c, request) // an error: the server does not read to the end
			}()
			if reads {
				b, _ := io.ReadAll(c)
				answer = string(b)
			}
			<-sent
			for { // until it is closed
				if _, err := io.WriteString(c, "x"); err != nil {
					return answer, time.Since(began)
				}
				time.Sleep(time.Second)
			}
		}
		for _, c := range []struct {
			what, request string
			reads         bool
			answer        string
			least, most   time.Duration
		}{
			{"a head that does not end", "GET /healthz HTTP/1.1\r\nHost: a\r\n", true, "", httpReadTimeout, httpReadTimeout + time.Second},
			{"a body that does not come", "GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n", true, "200 OK", httpReadTimeout, httpReadTimeout + time.Second},
			{"a huge head", "GET /healthz HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 2*maxHTTPHeader) + "\r\n\r\n", true, "431", 0, httpReadTimeout},
			{"an answer that is not read", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", false, "", httpWriteTimeout, httpWriteTimeout + time.Second},
			{
				"a long profile", "GET /debug/pprof/heap?seconds=90 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true, "200 OK",
				90 * time.Second, 91 * time.Second,
			},
		} {
			answer, after := ask(c.request, c.reads)
			if !strings.Contains(answer, c.answer) || after < c.least || after > c.most {
				t.Errorf("%s: closed after %s, %.40q", c.what, after, answer)
			}
		}
		close(listener)
		server.Close()
	})
}
