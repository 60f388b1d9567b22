package streams

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// written is a server's connection that notes what is written to it.
type written struct {
	*host
	mu     sync.Mutex
	writes []string
}

type notedConn struct {
	net.Conn
	w *written
}

func (w *written) InProcessConn() (net.Conn, error) {
	conn, err := w.host.InProcessConn()
	return &notedConn{conn, w}, err
}

func (c *notedConn) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), "HPUB carillon.trigger.") {
		c.w.mu.Lock()
		c.w.writes = append(c.w.writes, string(b))
		c.w.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// A publish while the connection is down fails: no answer can come.
func TestSenderFailsAcksWhileDisconnected(t *testing.T) {
	h := newHost(t)
	wire := NewWire(h)
	nc := h.connect(nats.InProcessServer(wire))
	s := open(t, nc, Config{Partitions: 1, Wire: wire, AckTimeout: time.Hour})
	if _, err := nc.SubscribeSync("hole"); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, meanwhile := range []func(){h.stop, func() {}} {
		answer := make(chan error, 1)
		if err := s.Out[0].PublishChained(chained("hole", nil, 0), func(_ uint64, err error) { answer <- err }); err != nil {
			t.Fatal(err)
		}
		s.Flush()
		meanwhile()
		if err := natstest.Receive(t, "the publish has an answer", answer); !errors.Is(err, ErrDisconnected) {
			t.Errorf("%v", err)
		}
	}
	s.Close()
	if err := s.Out[0].PublishChained(chained("hole", nil, 0), func(uint64, error) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Frames are sent whole: as many at a time as the server reads at a time, or a single longer one.
func TestSenderFlushesWhatIsReadAtOnce(t *testing.T) {
	w := &written{host: newHost(t)}
	wire := NewWire(w)
	s := open(t, w.connect(nats.InProcessServer(wire)), Config{Partitions: 1, Wire: wire})
	const n = 1000
	for i := range uint64(n) {
		data := strings.Repeat("x", int(i)%700)
		if i%100 == 99 {
			data = strings.Repeat("y", flushBytes+int(i))
		}
		if err := s.Out[0].PublishChained(&Chained{Subject: []byte("carillon.trigger.0.x"), Data: data, Expect: i}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if seq, err := publishChained(t, s.Out[0], "carillon.trigger.0.x", nil, n); seq != n+1 || err != nil {
		t.Fatalf("the last of the chain: %d, %v", seq, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := 0
	for i, b := range w.writes {
		count := strings.Count(b, "HPUB carillon.")
		if frames += count; !strings.HasSuffix(b, "\r\n") || len(b) >= flushBytes && count != 1 {
			t.Errorf("write %d has %d bytes, %d frames, and ends in %q", i, len(b), count, b[len(b)-2:])
		}
	}
	if frames != n+1 || len(w.writes) > 40 {
		t.Errorf("%d frames in %d writes", frames, len(w.writes))
	}
}
