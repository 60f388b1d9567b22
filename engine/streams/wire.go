package streams

import (
	"fmt"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// Wire is the client library's connection to a server in this process, on which whole protocol frames can
// be written beside the library's own. The library makes a map, sorts it and renders it for the headers of
// each message, which cost more than all else that the engine does for a trigger; a chain's messages are
// frames from the start.
//
// Given to nats.InProcessServer, it leaves everything else to the library: the handshake, credentials,
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

// Write sends frames and waits until the server has read them. Error: ErrDisconnected, and some of them
// may have arrived.
func (w *Wire) Write(frames []byte) error {
	w.mu.Lock()
	c := w.conn
	w.mu.Unlock()
	if c == nil {
		return ErrDisconnected
	}
	return c.writeFrames(frames)
}

// wireConn takes turns between two writers. The library, too, writes whole frames at a time: those that its
// buffer holds.
type wireConn struct {
	net.Conn

	mu   sync.Mutex
	open bool // the library has sent CONNECT: what follows is read after it
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
