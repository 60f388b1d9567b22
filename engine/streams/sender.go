package streams

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// sender sends the messages of all chains: as frames if there is a wire, else through the client library.
type sender struct {
	acks *acks
	wire *Wire

	mu     sync.Mutex
	frames []byte
	digits [20]byte
}

// flushBytes is the most that is gathered before it is sent: as much as nats-server reads at a time. It would copy a message once
// more that it reads in two parts.
const flushBytes = 64 << 10

func (s *sender) publish(m *Chained, onAck func(uint64, error)) error {
	if s.wire == nil {
		return s.acks.publish(message(m), m.kind(), onAck)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.frames)
	frame := append(append(s.frames, "HPUB "...), m.Subject...)
	frame = append(frame, ' ')
	if onAck != nil {
		id, err := s.acks.await(m.kind(), onAck)
		if err != nil {
			return err
		}
		frame = append(s.acks.appendReply(frame, id), ' ')
	}
	expect := strconv.AppendUint(s.digits[:0], m.Expect, 10)
	size := len(headerVersion) + len(expectLine) + len(expect) + len("\r\n") + len(m.Header) + len("\r\n")
	frame = strconv.AppendInt(frame, int64(size), 10)
	frame = append(frame, ' ')
	frame = strconv.AppendInt(frame, int64(size+len(m.Data)), 10)
	frame = append(frame, "\r\n"+headerVersion+expectLine...)
	frame = append(append(frame, expect...), "\r\n"...)
	frame = append(append(frame, m.Header...), "\r\n"...)
	s.frames = append(append(frame, m.Data...), "\r\n"...)
	switch {
	case len(s.frames) < flushBytes:
	case before == 0:
		s.send(len(s.frames))
	default:
		s.send(before)
	}
	return nil
}

const (
	headerVersion = "NATS/1.0\r\n"
	expectLine    = ExpectedLastSequence + ": "
)

func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.frames) > 0 {
		s.send(len(s.frames))
	}
}

// send writes the first n bytes of what was gathered. If that fails, all awaited answers fail. So every chain hears of it, because
// it awaits the answer to its last message.
func (s *sender) send(n int) {
	err := ErrDisconnected
	if s.acks.nc.IsConnected() { // so the library has subscribed again; before that answers would be lost
		err = s.wire.Write(s.frames[:n])
	}
	s.frames = s.frames[:copy(s.frames, s.frames[n:])]
	if err != nil {
		go s.acks.failAll(err) // in a goroutine, because callbacks may wait for our caller
	}
}

// message converts a chain's message to the library's form.
func message(m *Chained) *nats.Msg {
	header := make(nats.Header, 8)
	for line := range strings.SplitSeq(string(m.Header), "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			header[name] = []string{value}
		}
	}
	header[ExpectedLastSequence] = []string{strconv.FormatUint(m.Expect, 10)}
	return &nats.Msg{Subject: string(m.Subject), Header: header, Data: []byte(m.Data)}
}
