package streams

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats.go"
)

// wired makes a connection with a wire, and streams that publish on it.
func wired(t testing.TB, cfg Config) (*Streams, *nats.Conn, *host) {
	t.Helper()
	h := newHost(t)
	cfg.Wire = NewWire(h)
	nc := h.connect(nats.InProcessServer(cfg.Wire))
	return open(t, nc, cfg), nc, h
}

// A chain's message is the same whether it is sent on the wire or through the library.
func TestWireSendsWhatTheLibrarySends(t *testing.T) {
	messages := []Chained{
		{Subject: []byte("carillon.trigger.0.a"), Data: ""},
		{Subject: []byte("carillon.trigger.0.a"), Header: []byte("Carillon-Job: j\r\nx-own: a: b\r\n"), Data: "payload\r\nPUB x 0\r\n"},
		{Subject: []byte("carillon.event.0.skipped._"), Header: []byte("Carillon-Output: 3\r\n"), Data: strings.Repeat("x", 200_000)},
	}
	stored := func(s *Streams) (all []string) {
		for i := range messages {
			m := messages[i]
			m.Expect = uint64(i)
			answer := make(chan error, 1)
			if err := s.Out[0].PublishChained(&m, func(seq uint64, err error) { answer <- err }); err != nil {
				t.Fatal(err)
			}
			s.Flush()
			if err := <-answer; err != nil {
				t.Fatal(err)
			}
			got, err := s.Out[0].Get(t.Context(), uint64(i)+1)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(got.Subject, got.Header, string(got.Data)))
		}
		return all
	}
	library, _, _ := fresh(t, Config{Partitions: 1})
	wire, _, _ := wired(t, Config{Partitions: 1})
	want, got := stored(library), stored(wire)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("message %d is %.300q, want %.300q", i, got[i], want[i])
		}
	}
}

// So is a single message that is sent at once.
func TestWirePublishesWhatTheLibraryPublishes(t *testing.T) {
	messages := []nats.Msg{
		{Subject: "carillon.log.0.put.a"},
		{Subject: "carillon.log.0.put.b", Data: []byte("PUB x 0\r\n")},
		{Subject: "carillon.log.0.put.c", Header: nats.Header{"Carillon-Request": {"r: 1"}, "A": {"x", "", "z"}}},
		{Subject: "carillon.log.0.put.c", Header: nats.Header{"Carillon-Request": {"a\rb"}}},
		{Subject: "carillon.log.0.put.c", Header: nats.Header{"A": {"x\r\nB: y"}}},
		{Subject: "carillon.log.0.put.c", Header: nats.Header{"C": {" \tz "}}},
		{Subject: "carillon.log.0.put.d", Header: nats.Header{"Carillon-Request": {"r"}}, Data: []byte(strings.Repeat("x", 200_000))},
	}
	var counted uint64 // messages that the library sent, without requests, which may be sent twice
	stored := func(s *Streams) (all []string) {
		counted = 0
		for _, m := range messages {
			before := s.Log.nc.Stats().OutMsgs
			a := publishNow(t, s, m)
			counted += s.Log.nc.Stats().OutMsgs - before
			if a.err != nil {
				t.Fatal(a.err)
			}
			got, err := s.Log.Get(t.Context(), a.seq)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(got.Subject, got.Header, string(got.Data)))
		}
		return all
	}
	library, _, _ := fresh(t, Config{Partitions: 1})
	wire, nc, _ := wired(t, Config{Partitions: 1})
	want, got := stored(library), stored(wire)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("message %d is %.300q, want %.300q", i, got[i], want[i])
		}
	}
	if counted != 3 { // those that it would render differently
		t.Errorf("the library sent %d messages, want 3", counted)
	}
	tooLarge := make([]byte, nc.MaxPayload()+1)
	if a := publishNow(t, wire, nats.Msg{Subject: "carillon.log.0.put.e", Data: tooLarge}); !errors.Is(a.err, nats.ErrMaxPayload) {
		t.Errorf("what is too large for the server: %v, want %v", a.err, nats.ErrMaxPayload)
	}
	if !nc.IsConnected() {
		t.Error("the server ended the connection")
	}
}

// stored is the answer to a record.
type stored struct {
	seq uint64
	err error
}

func publishNow(t *testing.T, s *Streams, m nats.Msg) (a stored) {
	t.Helper()
	answer := make(chan stored, 1)
	if err := s.Log.PublishNow(m.Subject, m.Header, m.Data, func(seq uint64, err error) { answer <- stored{seq, err} }); err != nil {
		return stored{err: err}
	}
	return <-answer
}

// Frames and the library's own messages share one connection, and neither breaks the other.
func TestWireBesideTheLibrary(t *testing.T) {
	s, nc, _ := wired(t, Config{Partitions: 1})
	const n = 5000
	var library sync.WaitGroup
	arrived := make(chan string, 3*n)
	sub, err := nc.Subscribe("beside.*", func(m *nats.Msg) { arrived <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	for w := range 3 {
		library.Go(func() {
			for i := range n {
				m := &nats.Msg{Subject: "beside." + strconv.Itoa(w), Header: nats.Header{"I": {strconv.Itoa(i)}}, Data: []byte(strings.Repeat("y", i%3000))}
				if err := nc.PublishMsg(m); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range uint64(n) {
		err := s.Out[0].PublishChained(&Chained{Subject: []byte("carillon.trigger.0.x"), Data: strings.Repeat("z", int(i)%3000), Expect: i}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			s.Flush()
		}
	}
	if seq, err := publishChained(t, s.Out[0], "carillon.trigger.0.x", nil, n); seq != n+1 || err != nil {
		t.Fatalf("the last of the chain: %d, %v", seq, err)
	}
	library.Wait()
	lengths := make(map[int]int)
	for range 3 * n {
		lengths[len(<-arrived)]++
	}
	for i := range n {
		lengths[i%3000] -= 3
	}
	for length, left := range lengths {
		if left != 0 {
			t.Errorf("%d messages of %d bytes too many", left, length)
		}
	}
}

// A connection that breaks loses the chain with an error, and the next one carries on.
func TestWireReconnects(t *testing.T) {
	s, nc, h := wired(t, Config{Partitions: 1})
	const subject = "carillon.trigger.0.x"
	if seq, err := publishChained(t, s.Out[0], subject, nil, 0); seq != 1 || err != nil {
		t.Fatal(seq, err)
	}
	for range 3 {
		h.stop()
		if _, err := publishChained(t, s.Out[0], subject, nil, 1); !errors.Is(err, ErrDisconnected) {
			t.Fatalf("while the server is down: %v", err)
		}
		eventually(t, "the library notices", func() bool { return !nc.IsConnected() })
		h.start()
		eventually(t, "connected again", nc.IsConnected)
	}
	info, _, err := s.Out[0].Last(t.Context())
	if info.Last != 1 || err != nil {
		t.Fatalf("the stream ends at %d, %v", info.Last, err)
	}
	if seq, err := publishChained(t, s.Out[0], subject, nil, 1); seq != 2 || err != nil {
		t.Fatalf("after it came back: %d, %v", seq, err)
	}
}

// Nothing may be sent before the handshake: the server would take it for the message of an unknown client.
func TestWireWaitsForTheHandshake(t *testing.T) {
	h := newHost(t)
	w := NewWire(h)
	if err := w.Write([]byte("PING\r\n")); !errors.Is(err, ErrDisconnected) {
		t.Errorf("without a connection: %v", err)
	}
	conn, err := w.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := w.Write([]byte("PING\r\n")); !errors.Is(err, ErrDisconnected) {
		t.Errorf("before the handshake: %v", err)
	}
}

// Requests whose subjects have a carriage return in them do not end a connection on which requests come, and change no other message.
func TestRequestWireIsMended(t *testing.T) {
	h := newHost(t)
	nc := h.connect(nats.InProcessServer(NewRequestWire(h)))
	got, err := nc.SubscribeSync("ask.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	rogue, err := h.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer rogue.Close()
	go io.Copy(io.Discard, rogue)
	large := strings.Repeat("MSG a\rb 1 2\r\n", 20_000)
	for _, frame := range []string{
		"CONNECT {\"verbose\":false,\"headers\":true}\r\n", "PUB ask.a\rb in\rbox 2\r\n\r\n\r\n", "PUB ask.\r7 0\r\n\r\n",
		fmt.Sprintf("HPUB ask.h\r in 20 %d\r\nNATS/1.0\r\nA: a\rb\r\n\r\n%s\r\n", 20+len(large), large), fmt.Sprintf("PUB ask.large %d\r\n%s\r\n", len(large), large),
	} {
		if _, err := io.WriteString(rogue, frame); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct{ subject, reply, data string }{
		{"ask.a?b", "in?box", "\r\n"}, {"ask.?7", "", ""}, {"ask.h?", "in", large}, {"ask.large", "", large},
	} {
		m, err := got.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", want.subject, err)
		}
		if m.Subject != want.subject || m.Reply != want.reply || string(m.Data) != want.data {
			t.Errorf("%q %q, %d bytes; want %q %q, %d bytes", m.Subject, m.Reply, len(m.Data), want.subject, want.reply, len(want.data))
		}
	}
	if n := nc.Stats().Reconnects; n != 0 {
		t.Errorf("%d connections", n+1)
	}
}

// However the bytes arrive and are asked for, only the lines of messages change.
func TestMenderReadsAnyPieces(t *testing.T) {
	const in = "INFO {\"a\":\"\rb\"}\r\nPING\r\nMSG a\rb 1 4\r\n\rMSG\r\nHMSG c\r 1 \rd 3 5\r\nh\r\nMS\r\nMSG e 1 0\r\n\r\n-ERR 'x'\r\nMSG f 1 2\r\nMS"
	want := strings.NewReplacer("a\rb 1 4", "a?b 1 4", "c\r 1 \rd", "c? 1 ?d").Replace(in)
	for pieces := 1; pieces < 40; pieces++ {
		from := iotest.OneByteReader(strings.NewReader(in))
		if pieces%2 == 0 {
			from = strings.NewReader(in)
		}
		m := &mender{in: bufio.NewReaderSize(from, 64<<10)}
		var got []byte
		for b := make([]byte, pieces); ; {
			n, err := m.Read(b)
			if got = append(got, b[:n]...); err != nil {
				break
			}
		}
		if string(got) != want {
			t.Fatalf("in pieces of %d: %q, want %q", pieces, got, want)
		}
	}
}
