package streams

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Wire is the client library's connection to a server in this process, on which whole protocol frames can
// be written between the library's own. The package doc says why.
//
// It is to be given to nats.InProcessServer. Everything else is left to the library: the handshake, credentials,
// pings, reconnecting, and everything that is received.
type Wire struct {
	server nats.InProcessConnProvider

	mu   sync.Mutex
	conn *wireConn
}

// NewWire makes the wire of one connection to server.
func NewWire(server nats.InProcessConnProvider) *Wire { return &Wire{server: server} }

// InProcessConn is called by the library whenever it connects.
func (w *Wire) InProcessConn() (net.Conn, error) {
	conn, err := w.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = &wireConn{Conn: conn}
	return w.conn, nil
}

// Write sends frames and waits until the server has read them. Error: ErrDisconnected; some of the frames
// may have arrived then.
func (w *Wire) Write(frames []byte) error {
	w.mu.Lock()
	c := w.conn
	w.mu.Unlock()
	if c == nil {
		return ErrDisconnected
	}
	return c.writeFrames(frames)
}

// Publish sends one message at once. The library would gather messages and have another goroutine send them, which is better for
// many, but slower for a single one that somebody waits for. Messages that cannot be sent as a frame now are left to the library; nc
// is its connection. Errors: ErrDisconnected, and then the message may have arrived; the library's.
func (w *Wire) Publish(nc *nats.Conn, m *nats.Msg) error {
	b := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(b)
	*b = appendFrame((*b)[:0], m)
	// The server ends a connection that sends too large a message. While there is no connection, answers could not come back.
	if int64(len(*b)) > nc.MaxPayload() || !nc.IsConnected() || !plain(m.Header) {
		return nc.PublishMsg(m)
	}
	return w.Write(*b)
}

// plain tells whether the library would send the values unchanged.
func plain(h nats.Header) bool {
	for _, values := range h {
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n") || v != strings.TrimSpace(v) {
				return false
			}
		}
	}
	return true
}

// frameBuffers hold one frame each.
var frameBuffers = sync.Pool{New: func() any { return new([]byte) }}

// appendFrame renders a message as the library does.
func appendFrame(dst []byte, m *nats.Msg) []byte {
	verb, head := "PUB ", 0
	if len(m.Header) > 0 {
		verb, head = "HPUB ", len(headerVersion)+len("\r\n")
		for name, values := range m.Header {
			for _, v := range values {
				head += len(name) + len(": ") + len(v) + len("\r\n")
			}
		}
	}
	dst = append(append(append(dst, verb...), m.Subject...), ' ')
	if m.Reply != "" {
		dst = append(append(dst, m.Reply...), ' ')
	}
	if head > 0 {
		dst = append(strconv.AppendInt(dst, int64(head), 10), ' ')
	}
	dst = append(strconv.AppendInt(dst, int64(head+len(m.Data)), 10), "\r\n"...)
	if head > 0 {
		dst = append(dst, headerVersion...)
		for _, name := range slices.Sorted(maps.Keys(m.Header)) {
			for _, v := range m.Header[name] {
				dst = append(append(append(append(dst, name...), ": "...), v...), "\r\n"...)
			}
		}
		dst = append(dst, "\r\n"...)
	}
	return append(append(dst, m.Data...), "\r\n"...)
}

// wireConn serializes two writers. The library, too, writes only whole frames at a time: those in its
// buffer.
type wireConn struct {
	net.Conn

	mu   sync.Mutex
	open bool // the library has sent CONNECT, which must come first
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = true
	return c.Conn.Write(b)
}

func (c *wireConn) writeFrames(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return ErrDisconnected
	}
	if _, err := c.Conn.Write(b); err != nil {
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	return nil
}
