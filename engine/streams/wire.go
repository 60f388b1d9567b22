package streams

import (
	"bufio"
	"bytes"
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
	mend   bool // what is received (mender)

	mu   sync.Mutex
	conn *wireConn
}

// NewWire makes the wire of one connection to server.
func NewWire(server nats.InProcessConnProvider) *Wire { return &Wire{server: server} }

// NewRequestWire is NewWire for a connection on which clients' requests come: no subject of theirs ends it (mender).
func NewRequestWire(server nats.InProcessConnProvider) *Wire {
	return &Wire{server: server, mend: true}
}

// InProcessConn is called by the library whenever it connects.
func (w *Wire) InProcessConn() (net.Conn, error) {
	conn, err := w.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	if w.mend {
		conn = &mender{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
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

// mender replaces carriage returns within lines of the protocol that it reads by question marks. nats-server takes a subject or a reply
// subject with a carriage return in it, and sends it as it is. To the library the line is malformed, so it connects anew, and all requests
// on the way are lost: with fifty such requests a second nobody had an answer. (The log's reader needs subjects as they are; see breaks.)
type mender struct {
	net.Conn
	in      *bufio.Reader
	line    []byte // what is left of a line, in the memory of in
	payload int    // bytes left of a message, with the end of line behind them
}

// Read waits only for the first bytes, and for the end of a line.
func (m *mender) Read(b []byte) (n int, err error) {
	for n < len(b) && err == nil && (n == 0 || m.in.Buffered() > 0 || len(m.line) > 0) {
		var k int
		switch {
		case len(m.line) > 0:
			k = copy(b[n:], m.line)
			m.line = m.line[k:]
		case m.payload > 0:
			k, err = m.in.Read(b[n:min(len(b), n+m.payload)])
			m.payload -= k
		default:
			m.line, err = m.in.ReadSlice('\n')
			m.mendLine()
			if err == bufio.ErrBufferFull { // no line of a message is so long
				err = nil
			}
		}
		n += k
	}
	if n > 0 || len(m.line) > 0 {
		return n, nil // an error comes again
	}
	return 0, err
}

func (m *mender) mendLine() {
	line, whole := bytes.CutSuffix(m.line, []byte("\r\n"))
	if !whole || !bytes.HasPrefix(line, []byte("MSG ")) && !bytes.HasPrefix(line, []byte("HMSG ")) {
		return
	}
	for i, c := range line {
		if c == '\r' {
			line[i] = '?'
		}
	}
	size, err := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
	if err == nil {
		m.payload = size + len("\r\n")
	}
}
