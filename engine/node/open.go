package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// open opens the local stores, starts the embedded server or connects to an external NATS, and opens the streams.
func (n *Node) open(ctx context.Context) (err error) {
	if n.restored, err = readRestored(n.o.Data); err != nil {
		return err
	}
	if n.restored != nil {
		if err := n.restored.expect(&n.o); err != nil {
			return err
		}
	}
	// What may take long is done side by side: the two stores are opened; then the embedded server starts while the partitions
	// recover, if there is a checkpoint, which has the layout. With an external NATS recovery comes after the connection: NATS may
	// be away for long, and each new start would recover again.
	opened := sync.OnceValue(func() error { return n.openLog(false) })
	n.recoverOnce = sync.OnceValue(func() error { return n.recover(ctx) })
	n.work.Go(func() { _ = opened() }) // its error is returned below
	o := n.o
	if err := n.openJobs(n.compactionRest(ctx)); err != nil {
		return err
	}
	n.layout, _ = layoutOf(n.jobTable, n.o.Data) // if it cannot be read, recover says so
	if err := n.expectSaved(&o); err != nil {
		return err
	}
	if o.NATS == "" && n.layout.Partitions > 0 {
		n.work.Go(func() {
			if opened() == nil {
				_ = n.recoverOnce() // start returns its error
			}
		})
	}
	if err := n.connect(&o); err != nil {
		return err
	}
	var loss *wal.LossError
	if err := opened(); err != nil && !errors.As(err, &loss) {
		return err
	}
	if loss == nil && n.layout.Partitions == 0 {
		if err := n.expectLog(&o); err != nil {
			return err
		}
	}
	if err := n.openStreams(ctx, &o); err != nil {
		return err
	}
	if loss != nil {
		if err := n.openWithLoss(ctx, loss); err != nil {
			return err
		}
	}
	if n.layout.Partitions == 0 {
		n.layout = engine.Layout{Prefix: o.Prefix, Partitions: n.streams.Log.Partitions()}
	}
	return n.openSyncs()
}

// openStreams opens the log and output streams, and makes those that are not there.
func (n *Node) openStreams(ctx context.Context, o *Options) (err error) {
	reader, bucket := "", int64(cluster.BucketMaxBytes) // with an external NATS: a random name, and room for the nodes' bucket
	if n.server != nil {
		reader, bucket = embedded.Reader, 0
	}
	c := o.streams()
	c.UpdateLimits = n.server != nil && o.NATSConfig == "" // then clients have no right to edit the streams
	c.MustExist = n.server == nil && n.knowsLog()
	c.Bucket, c.Rights = bucket, n.requiredRights()
	c.Reader, c.Wire, c.Gather, c.OnReset = reader, n.wire, n.replies.gather, n.readerResets
	n.streams, err = streams.Open(ctx, n.nc, c)
	if errors.Is(err, streams.ErrNoStream) {
		return fmt.Errorf("node: %w, but this node has read it: the NATS server lost acknowledged records, or cannot read them, or is another one; see docs/operations.md", err)
	}
	if err != nil {
		return err
	}
	if has := n.streams.Log.Replicas(); has > max(o.Replicas, 1) {
		n.log.Info("the streams have more replicas than are asked for, and keep them", "replicas", has, "asked_for", max(o.Replicas, 1))
	}
	for p := range o.AcceptLoss {
		if p < 0 || p >= n.streams.Log.Partitions() {
			return fmt.Errorf("node: a loss of partition %d cannot be accepted: there are 0 to %d", p, n.streams.Log.Partitions()-1)
		}
	}
	return nil
}

// openSyncs prepares the syncs of the embedded server's output streams (syncOutputs).
func (n *Node) openSyncs() (err error) {
	if n.server == nil {
		return nil
	}
	n.outputs = make([]*streams.FileSync, n.layout.Partitions)
	for p := range n.outputs {
		if n.outputs[p], err = streams.NewFileSync(n.server.JetStreamDir(), n.streams.Out[p].Name()); err != nil {
			return err
		}
	}
	// Streams that were made just now must survive a power failure.
	return streams.Syncfs(n.server.JetStreamDir())
}

// connect starts the embedded server and connects to it, or connects to an external NATS.
func (n *Node) connect(o *Options) (err error) {
	if o.NATS == "" {
		n.server, err = embedded.Start(embedded.Options{
			Dir: o.natsDir(), Listen: o.Listen, ConfigFile: o.NATSConfig, Account: o.NATSAccount,
			Credentials: o.NATSCreds, Prefix: o.Prefix, StreamPrefix: o.Stream, Partitions: o.Partitions, Logger: n.log,
		})
		if err != nil {
			return err
		}
		n.wire, n.requestWire = streams.NewWire(n.server), streams.NewRequestWire(n.server)
		n.nc, err = n.server.Connect(nats.Name("carillon "+o.Name), nats.InProcessServer(n.wire), nats.NoEcho())
		if err == nil {
			n.requestConn, err = n.server.ConnectService(nats.Name("carillon "+o.Name+requestsPurpose), nats.InProcessServer(n.requestWire), nats.ErrorHandler(n.noteConnError))
		}
	} else {
		n.servers.Config, n.url = o.servers(), o.NATS
		n.nc, err = n.connectExternal("", nats.ReconnectToServer(n.servers.Choose),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.logConnError(err) }))
		if err == nil {
			n.requestConn, err = n.connectExternal(requestsPurpose, servers.Beside(n.nc), nats.ErrorHandler(n.noteConnError),
				nats.ClosedHandler(func(nc *nats.Conn) { // for good; where the node closes it, this comes too late to matter
					n.fail(fmt.Errorf("%w: the connection of requests was closed: %w", errUnreachable, cmp.Or(nc.LastError(), nats.ErrConnectionClosed)))
				}))
		}
	}
	if err != nil {
		return fmt.Errorf("node: connect to NATS: %w", err)
	}
	// An account may have a lower max_payload than the server. The server only says so after its answer to the first ping, so another
	// ping is sent. If that is not answered, a later step will fail.
	_ = n.nc.FlushTimeout(replyTimeout)
	if n.nc.MaxPayload() < leastMaxPayload {
		return fmt.Errorf("%w: max_payload of nats-server is %d bytes, must be %d", errSmall, n.nc.MaxPayload(), leastMaxPayload)
	}
	return nil
}

// leastMaxPayload has room for all of the engine's messages. The largest is an answer with one job: 683 KiB of payload in base64, 32 KiB
// of headers if each of their characters is escaped, 16 KiB of such labels, and 2 KiB of all else. Without room for it no list that
// comes to that job could be answered.
const leastMaxPayload = 768 << 10

// requestsPurpose is the end of the name of the connection of requests.
const requestsPurpose = " requests"

// connectExternal makes a connection to an external NATS that comes back by itself.
func (n *Node) connectExternal(purpose string, more ...nats.Option) (*nats.Conn, error) {
	return n.servers.Config.Connect(purpose, append(more,
		nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(), // the server's resolver may be away, or credentials are just being exchanged
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { n.unreached.Store(&err) }),
		n.logConnection(purpose))...)
}

// expectSaved refuses options that differ from the service whose jobs are in the data directory, before streams are made for
// them: under another prefix or number of partitions the jobs would look damaged.
func (n *Node) expectSaved(o *Options) error {
	saved := n.layout
	switch {
	case saved.Partitions == 0: // there is no checkpoint, or it cannot be read
		return nil
	case saved.Prefix != o.Prefix:
		return fmt.Errorf("node: data directory %s has the jobs of a service with the prefix %q, not %q", o.Data, saved.Prefix, o.Prefix)
	case o.Partitions != 0 && o.Partitions != saved.Partitions:
		return fmt.Errorf("node: data directory %s has the jobs of a service that was made with %d partitions, %d were asked for: the number cannot change",
			o.Data, saved.Partitions, o.Partitions)
	}
	o.Partitions = saved.Partitions
	return nil
}

// expectLog checks the prefix against the local log, for when there is no checkpoint yet. The local log's records would be put back
// into the other service's log, where they have no effect.
func (n *Node) expectLog(o *Options) error {
	last := n.local.Last()
	if last == 0 {
		return nil
	}
	data, err := n.local.Get(last)
	if err != nil {
		return nil // recover says why
	}
	r, err := engine.DecodeRecord(last, data)
	if err != nil || strings.HasPrefix(r.Subject, o.Prefix+".log.") || strings.HasPrefix(r.Subject, o.Prefix+".cmd.") {
		return nil
	}
	return fmt.Errorf("node: data directory %s has the log of a service with another prefix than %q: there is %q", o.Data, o.Prefix, r.Subject)
}

// knowsLog tells whether the log stream must be there already: this node has read it before, and not all losses are accepted.
// A stream that an external nats-server does not know may still be on its disk, for example when the key of an encrypted store is wrong.
// Making the stream again would destroy it.
func (n *Node) knowsLog() bool {
	if n.restored != nil || len(n.o.AcceptLoss) > 0 && n.acceptsAll(cmp.Or(n.layout.Partitions, n.o.Partitions)) {
		return false
	}
	return n.layout.Partitions > 0 || n.local != nil && n.local.Last() > 0
}

// openJobs opens the job table. A table that lost its end is as it was at an earlier checkpoint, and the local log is replayed from
// there. Whether the log reaches back that far is checked when both are open (recoverPartition). rest is wal.Options.Rest.
func (n *Node) openJobs(rest func(behind bool)) (err error) {
	o := n.o.JobStore
	o.Dir, o.Logger, o.Profile, o.Rest = filepath.Join(n.o.Data, "jobs"), n.log, wal.ProfileTable, rest
	n.jobStore, err = wal.OpenStore(o)
	var loss *wal.LossError
	if errors.As(err, &loss) {
		n.log.Warn("the job table lost its end; going on from an earlier checkpoint", "error", loss)
		o.AllowLoss = true
		n.jobStore, err = wal.OpenStore(o)
	}
	if err != nil {
		return fmt.Errorf("node: job table: %w", err)
	}
	n.jobTable = snapshot.OpenTable(n.jobStore)
	return nil
}

// openWithLoss opens a local log that lost its end. Nothing is lost while the stream still has the records: they are read again. It asks
// the stream before it opens the log, because an opened log no longer shows the loss.
func (n *Node) openWithLoss(ctx context.Context, loss *wal.LossError) error {
	info, err := n.streams.Log.Info(ctx)
	if err != nil {
		return err
	}
	if (info.Last < loss.SyncedLast || info.First > loss.Last+1) && !n.acceptsAll(n.streams.Log.Partitions()) {
		return fmt.Errorf("node: %w; the log stream holds %d to %d, so not all of the lost records can be read again", loss, info.First, info.Last)
	}
	n.log.Warn("the local log lost its end; reading it again from the stream", "error", loss)
	return n.openLog(true)
}

// openLog opens the local log. Its errors are those of wal.OpenStore.
func (n *Node) openLog(allowLoss bool) (err error) {
	o := n.o.LogStore
	o.Dir, o.Logger, o.OnSync, o.AllowLoss = filepath.Join(n.o.Data, "log"), n.log, n.meters.synced, allowLoss
	if n.logStore, err = wal.OpenStore(o); err == nil {
		n.local = n.logStore.Log()
	}
	return err
}

// acceptsAll tells whether losses of every partition are accepted, as they must be if the log itself lost records.
func (n *Node) acceptsAll(partitions int) bool {
	for p := range partitions {
		if !n.o.AcceptLoss[p] {
			return false
		}
	}
	return true
}
