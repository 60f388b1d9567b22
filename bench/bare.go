package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// The subjects and the stream of a bare create: the client's request, and the record in the stream that stands for the log.
const (
	bareRequest = "bare.create"
	bareStream  = "BARE_LOG"
	bareRecord  = "bare.log.put"
)

// bareWork is Work for the floor of a single client's create: all that makes a command durable, but no engine. The process embeds a
// server as an engine does. It gets a request over TCP, appends it to a stream, reads it back from there, writes it to a local log
// with an fsync, and answers. It ends when its input ends.
func bareWork(input *json.Decoder, output *json.Encoder, in string) (err error) {
	var b bare
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(in); err != nil {
		return fmt.Errorf("bench: a bare service: %w", err)
	}
	if err := output.Encode(workerReady{Ready: true, URL: b.server.ClientURL()}); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	if err := input.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bench: worker: its input did not just end: %v", err)
	}
	return nil
}

// bare is the service of bareWork. It serves one request at a time.
type bare struct {
	server *embedded.Server
	wire   *streams.Wire
	nc     *nats.Conn
	store  *wal.Store
	asked  chan string // the reply subject of the request in progress
}

// open makes the service in a directory.
func (b *bare) open(dir string) (err error) {
	b.server, err = embedded.Start(embedded.Options{
		Dir: filepath.Join(dir, "nats"), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	b.wire = streams.NewWire(b.server) // as an engine does while few commands are in progress
	if b.nc, err = b.server.Connect(nats.InProcessServer(b.wire)); err != nil {
		return err
	}
	if b.store, err = wal.OpenStore(wal.Options{Dir: filepath.Join(dir, "log")}); err != nil {
		return err
	}
	js, err := b.nc.JetStream()
	if err != nil {
		return err
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: bareStream, Subjects: []string{bareRecord}, Storage: nats.FileStorage}); err != nil {
		return err
	}
	b.asked = make(chan string, 1)
	if _, err := b.nc.Subscribe(bareRequest, b.take); err != nil {
		return err
	}
	if _, err := js.Subscribe(bareRecord, b.carryOut, nats.OrderedConsumer()); err != nil {
		return err
	}
	if err := b.nc.Flush(); err != nil {
		return err
	}
	return b.server.Listen()
}

func (b *bare) close() (err error) {
	if b.nc != nil {
		b.nc.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
	}
	if b.store != nil {
		err = b.store.Close()
	}
	return err
}

// take appends a request. If that fails, the client gets no answer, and reports that.
func (b *bare) take(request *nats.Msg) {
	b.asked <- request.Reply
	if err := b.wire.Publish(b.nc, &nats.Msg{Subject: bareRecord, Data: request.Data}); err != nil {
		<-b.asked
	}
}

// carryOut syncs the record that was read back to disk, and answers.
func (b *bare) carryOut(record *nats.Msg) {
	meta, err := record.Metadata()
	if err == nil {
		err = b.store.Log().Append([]wal.Record{{Seq: meta.Sequence.Stream, Data: record.Data}})
	}
	answer := &nats.Msg{Subject: <-b.asked, Data: record.Data}
	if err == nil {
		_ = b.wire.Publish(b.nc, answer) // if that fails, the client gets no answer, and reports that
	}
}

// bareClient is a bare service's process, and one client of it.
type bareClient struct {
	own     *scratch // the service's directory
	process *workerProcess
	nc      *nats.Conn
	request []byte
}

// startBare starts a bare service for requests that are as long as request. The caller must stop it, even after an error.
func startBare(ctx context.Context, e *engine, request []byte) (c *bareClient, err error) {
	c = &bareClient{request: request}
	if c.own, err = makeScratch(e.Data); err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	if c.process, err = e.startWorker(ctx, workerStart{Bare: c.own.dir}); err != nil {
		return c, err
	}
	if c.nc, err = e.Connect(c.process.ready.URL); err != nil {
		return c, fmt.Errorf("bench: connect to a bare service: %w", err)
	}
	return c, nil
}

// create sends one request and waits for its answer.
func (c *bareClient) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	if _, err := c.nc.RequestWithContext(ctx, bareRequest, c.request); err != nil {
		return fmt.Errorf("a bare service: %w", err)
	}
	return nil
}

// stop kills the service, and then removes its directory, which the service had no chance to do.
func (c *bareClient) stop() error {
	if c.nc != nil {
		c.nc.Close()
	}
	if c.process != nil {
		c.process.stop()
	}
	if c.own == nil {
		return nil
	}
	return c.own.remove()
}
