package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/filelock"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// Ready says where a node that takes jobs can be reached.
type Ready struct {
	NATS       string // URL for clients
	HTTP       string // URL, "" when off
	Partitions int
}

// Run runs a node until ctx ends, then stops it cleanly: what it serves is handed over, where there is somebody to take
// it, and a checkpoint stands at the head of the log. ready is called each time it begins to take jobs. A node whose disk
// was full, or a store of which failed, is started again in place once there is room; so is one that could open no more files,
// one that an external NATS keeps waiting, and one that the log left behind, with nothing. Any other error ends Run.
func Run(ctx context.Context, o Options, ready func(Ready)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	if err := os.MkdirAll(o.Data, 0o750); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	lock, err := lockData(o.Data)
	if err != nil {
		return err
	}
	defer lock.Close()
	// What was left when giving up a state was interrupted.
	if err := os.RemoveAll(filepath.Join(o.Data, setAside)); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	web := newWeb()
	var httpURL string
	if o.HTTP != "off" {
		listener, err := net.Listen("tcp", o.HTTP)
		if err != nil {
			return fmt.Errorf("node: cannot serve health and metrics on %s (is another engine running there?): %w", o.HTTP, err)
		}
		httpURL = "http://" + listener.Addr().String()
		server := &http.Server{Handler: web.handler(o.Profiles), ReadHeaderTimeout: 10 * time.Second}
		go server.Serve(listener)
		defer server.Close()
	}
	var away, short trouble
	for anew := false; ; {
		n := &Node{o: o, log: o.Logger, web: web, meters: web.meters, session: rand.Text()[:10], anew: anew, delivered: make(chan struct{}, 1), lists: make(chan struct{}, maxLists)}
		err := n.run(ctx, httpURL, ready)
		web.serve(nil)
		if err == nil || ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			return nil
		}
		var behind *leftBehindError
		if errors.As(err, &behind) {
			o.Logger.Warn("giving up what this node has, to take it from others", "reason", err)
			web.problem("this node was left behind by the log, and takes what it missed from others")
			if err = passing(beginAnew(ctx, o, behind)); err == nil {
				anew = true
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		anew = false
		switch {
		case errors.Is(err, errDisk):
			// Once nats-server or Pebble met a full disk they stay as they are until they are started again.
			short.tellFirst(1, o.Logger.Error, time.Now(), "stopped firing, waiting for the disk", "error", err)
		case errors.Is(err, errNoFiles):
			short.tellFirst(1, o.Logger.Error, time.Now(), "stopped firing, waiting for fewer open files", "error", err)
		case errors.Is(err, errUnreachable):
			away.tell(o.Logger, time.Now(), "waiting for NATS", "error", err)
		default:
			return err
		}
		web.problem(err.Error())
		if waitForRoom(ctx, o) != nil {
			return nil
		}
		// A restart on the same addresses: port 0 was chosen once.
		if o.NATS == "" && n.server != nil && o.NATSConfig == "" {
			o.Listen = hostOf(n.url, o.Listen)
		}
	}
}

// ErrDataInUse is returned by Run when another process runs on the same data directory.
var ErrDataInUse = errors.New("node: the data directory is in use by another process")

// lockData takes the data directory for this process, restarts within it included, until the file is
// closed or the process ends.
func lockData(dir string) (*os.File, error) {
	f, err := filelock.Take(filepath.Join(dir, "carillon.lock"))
	if errors.Is(err, filelock.ErrTaken) {
		return nil, fmt.Errorf("%w: %s", ErrDataInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("node: data directory: %w", err)
	}
	return f, nil
}

// Node is one run of the engine.
type Node struct {
	o      Options
	log    *slog.Logger
	web    *web
	meters *meters
	layout engine.Layout // that of the checkpoints, where there are any; else the streams'

	store   *wal.Store // of the log
	local   *wal.Log
	jobs    *wal.Store
	saved   *snapshot.Table // in jobs: the checkpoints
	server  *embedded.Server
	url     string
	nc      *nats.Conn
	asked   *nats.Conn    // requests come by it: of an embedded server one of their own, so that a flood of them holds up no log
	wire    *streams.Wire // of nc, to the embedded server
	streams *streams.Streams
	outputs []*streams.FileSync // of the embedded server's output streams, by partition

	unreached atomic.Pointer[error] // why the last try to connect nc again failed, as the library forgets it

	chained    streams.Chained // of the clockwork, for the next message
	sharing    int             // partitions that share the window; of the clockwork, too
	session    string          // of this run, in the ids of its messages
	partitions []*partition
	anew       bool          // it has nothing, and others have all
	idle       time.Duration // when the log was cut last by a node that follows nothing, since the clock began
	from       uint64        // position at which the local log of a node that had nothing begins
	applied    atomic.Uint64 // stream sequence of the last record applied to every partition it concerns
	appliedAt  time.Time     // its timestamp; the reader's
	head       atomic.Uint64 // the log's last sequence, as far as known
	clock      clock
	bell       alarm
	delivered  chan struct{} // rung when records were applied
	replies    replies
	api        atomic.Pointer[micro.Service]
	calls      atomic.Int64  // requests in progress
	callBytes  atomic.Int64  // of their bodies
	imports    atomic.Int64  // those that are imports
	selections atomic.Int64  // those that change a selection
	lists      chan struct{} // holds one for each list that is put together
	ticking    ticking
	ticksLost  trouble
	claimsLost trouble
	unsaid     trouble // an output stream does not say how far it is
	chains     trouble // that were lost
	resumes    trouble // of theirs
	resets     trouble
	unfollowed trouble
	strays     trouble      // records of the log that concern no partition
	refusals   trouble      // of the credentials, one with each try
	protests   trouble      // of the connection else, such as a right that is missing: one with each message
	filling    filling      // of the log stream
	answered   atomic.Int64 // when the log stream said last what it holds, ns since the clock began
	answering  atomic.Int64 // since when it has said so again and again, the same
	shapes     shapes       // of the streams
	logKept    sync.RWMutex // held by who needs the log and the checkpoints to stay; written to drop some
	holdTicks  atomic.Bool  // the disk has too little room to fire
	refuseJobs atomic.Bool  // the disk has too little room for new jobs
	recovered  func() error // has recover done once
	joined     joined       // with an external NATS
	pulse      pulse        // the same
	servers    servers      // the same
	leaders    leaders      // the same
	detour     detour       // the same
	reached    reached
	logEnd     ends         // of the log, asked for once for all who ask at a time
	saves      saves        // of snapshots
	gives      saves        // of partitions, for other nodes
	given      sync.RWMutex // held by who reads what partitions have saved; written to give one up
	restored   *restored    // at the first start after a restore

	fail func(error)    // ends the run
	work sync.WaitGroup // goroutines that use what close closes
}

// partition is one machine with what serves it.
type partition struct {
	number int

	mu        sync.Mutex // guards machine, owner and what follows
	machine   *engine.Machine
	table     table // that the machine reads
	owner     engine.Owner
	claiming  bool      // a claim is on its way
	sentClaim bool      // this run has sent one
	claims    uint64    // that were sent
	claimed   time.Time // when the last one was sent
	stopped   error     // why the partition stopped for good
	upTo      uint64    // records up to here are in a machine that began to follow during this run

	follows atomic.Bool   // the machine has the partition's jobs; else it is empty. Written under mu
	needs   atomic.Uint64 // a position from which the log is wanted in order to follow; 0: none
	leaves  atomic.Bool   // it is about to be given up: others are asked from now on
	asked   atomic.Int64  // commands that were taken here, and are not answered

	out       sync.Mutex // guards chain and what follows
	chain     *engine.Chain
	serving   bool   // the partition is this node's, and so it is to keep the chain going
	run       uint64 // counts resumes: an answer to an earlier run's publish is void
	offered   uint64 // outputs up to here were offered to the chain
	durable   engine.Acked
	settling  engine.Acked // stored; durable once the next sync has ended (syncOutputs)
	foreign   uint64
	counted   uint64 // sequence up to which foreign messages were counted
	marker    uint64 // the output that marks a loss that was accepted, or one before it
	resyncing bool   // one goroutine waits for late answers of the stream, or resumes the chain
	overdue   overdue
	leader    streams.Leader // of the stream when it was last asked for its end
	lostSince time.Time      // when the chain was lost; zero once it has put out what waited
	resumed   time.Time      // when the chain was last resumed
	pause     time.Duration  // before it is resumed again

	taking       sync.Mutex    // held while a checkpoint is taken
	wanted       atomic.Int32  // how many wait to take one
	checkpoint   atomic.Uint64 // position of the newest checkpoint
	older        atomic.Uint64 // position of the one before, 0 when there is none or it is not known
	checkpointAt atomic.Int64  // ns since the clock began; 0: none was taken, or read
	bytesAt      atomic.Uint64 // what the node had read of the log then, in bytes
}

func (n *Node) run(parent context.Context, httpURL string, ready func(Ready)) (err error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)
	n.fail = func(err error) { cancel(err) }
	defer context.AfterFunc(parent, func() {
		n.handOver(ctx, n.o.HandOver)
		n.unasked(ctx)
		n.answerLast(ctx)
		n.lastTick(ctx)
		cancel(context.Cause(parent))
	})()

	n.clock.begin(n.o.NATS != "")
	n.replies.init()
	n.bell, err = newAlarm()
	if err != nil {
		return err
	}
	defer n.bell.close()
	if err := n.open(ctx); err != nil {
		cancel(nil)
		n.work.Wait()
		return passing(errors.Join(n.unreachable(err), n.close()))
	}
	if n.server == nil {
		n.join(ctx)
	}
	defer func() {
		cancel(nil)
		n.windDown()
		err = passing(errors.Join(err, n.close()))
	}()
	if err := n.recovered(); err != nil {
		return err
	}
	if err := n.streams.Log.Await(ctx); err != nil { // what was recovered need not be read again for an election
		return n.unreachable(err)
	}
	if err := n.heal(ctx); err != nil {
		return n.unreachable(err)
	}
	if err := n.relieve(ctx); err != nil {
		return n.unreachable(err)
	}
	if err := n.watchOutputs(); err != nil {
		return err
	}
	n.web.serve(n)

	n.work.Go(func() { n.heedStores(ctx) })
	n.work.Go(func() { n.read(ctx) })
	n.work.Go(func() { n.clockwork(ctx) })
	n.work.Go(func() { n.tend(ctx) })
	n.work.Go(func() { n.replies.run(ctx) })
	if n.o.OwnProcess {
		n.work.Go(func() { n.tendMemory(ctx) })
	}
	if n.server == nil {
		err = n.takePart(ctx)
	} else {
		err = n.claimAll(ctx)
	}
	if err != nil {
		return n.unreachable(cause(ctx, err))
	}
	n.meetOthers(ctx)
	api, err := n.serveAPI()
	if err != nil {
		return err
	}
	n.api.Store(&api)
	if n.server != nil {
		if err := n.server.Listen(); err != nil {
			return err
		}
		n.url = n.server.ClientURL()
	}
	n.saves.open(ctx)
	n.gives.open(ctx)
	n.web.ready.Store(true)
	ready(Ready{NATS: n.url, HTTP: httpURL, Partitions: n.layout.Partitions})

	<-ctx.Done()
	n.web.ready.Store(false)
	api.Stop()
	n.windDown()
	n.lastAnswers()
	if err := context.Cause(ctx); parent.Err() == nil && err != nil {
		return err
	}
	return n.checkpointAll(context.WithoutCancel(ctx))
}

// windDown ends what goes on beside a run. The run's context has ended; calling it again does nothing.
func (n *Node) windDown() {
	n.leave()
	n.work.Wait()
	n.saves.close()
	n.gives.close()
}

// cause prefers why the run was ended to what that made of a waiting call.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// open opens the local store, the NATS server or the way to one, and the streams.
func (n *Node) open(ctx context.Context) (err error) {
	if n.restored, err = readRestored(n.o.Data); err != nil {
		return err
	}
	if n.restored != nil {
		if err := n.restored.expect(&n.o); err != nil {
			return err
		}
	}
	// What takes long where there is much is done side by side: the stores are opened, and then the embedded server starts
	// while the partitions recover, if there is a checkpoint that says in which layout. An external NATS may be away for long.
	opened := sync.OnceValue(func() error { return n.openLog(false) })
	n.recovered = sync.OnceValue(func() error { return n.recover(ctx) })
	n.work.Go(func() { _ = opened() }) // asked again below
	o := n.o
	if err := n.openJobs(n.compactionRests(ctx)); err != nil {
		return err
	}
	n.layout, _ = n.savedLayout() // what cannot be read is left to recover
	if err := n.expectSaved(&o); err != nil {
		return err
	}
	if o.NATS == "" {
		if n.layout.Partitions > 0 {
			n.work.Go(func() {
				if opened() == nil {
					_ = n.recovered() // run asks again
				}
			})
		}
		n.server, err = embedded.Start(embedded.Options{
			Dir: filepath.Join(o.Data, "nats"), Listen: o.Listen, ConfigFile: o.NATSConfig, Account: o.NATSAccount,
			Credentials: o.NATSCreds, Prefix: o.Prefix, StreamPrefix: o.Stream, Partitions: o.Partitions, Logger: n.log,
		})
		if err != nil {
			return err
		}
		n.wire = streams.NewWire(n.server)
		n.nc, err = n.server.Connect(nats.Name("carillon "+o.Name), nats.InProcessServer(n.wire), nats.NoEcho())
		if err == nil {
			n.asked, err = n.server.Connect(nats.Name("carillon " + o.Name + " requests"))
		}
	} else {
		n.nc, err = o.connect("",
			nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond), nats.ReconnectBufSize(-1), nats.ReconnectToServer(n.servers.choose),
			nats.IgnoreAuthErrorAbort(), // as its own resolver is away, or while credentials are exchanged
			nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { n.unreached.Store(&err) }),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.protest(err) }))
		n.asked, n.url = n.nc, o.NATS
	}
	n.servers.o, n.servers.main = n.o, n.nc
	if err != nil {
		return fmt.Errorf("node: connect to NATS: %w", err)
	}
	// An account may be allowed less than the server takes, which is said behind the answer to the first ping. Where a second one
	// is not answered, what follows says so.
	_ = n.nc.FlushTimeout(replyTimeout)
	if least := int64(carillon.MaxPayload + carillon.MaxHeaderBytes + 8<<10); n.nc.MaxPayload() < least {
		return fmt.Errorf("node: max_payload of nats-server is %d bytes; a trigger may need %d", n.nc.MaxPayload(), least)
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
	reader := "engine" // protected from clients by the embedded server; elsewhere a random one
	if n.server == nil {
		reader = ""
	}
	n.streams, err = streams.Open(ctx, n.nc, streams.Config{
		Prefix: o.Prefix, StreamPrefix: o.Stream, Partitions: o.Partitions, Replicas: o.Replicas,
		LogMaxBytes: o.LogMaxBytes, OutMaxBytes: o.OutMaxBytes, OutMaxAge: o.OutMaxAge, PersistAsync: o.PersistAsync,
		Rebound: n.server != nil && o.NATSConfig == "", // clients may not edit them there
		Rights:  n.rights(),
		Reader:  reader, Wire: n.wire, Gather: n.replies.gather, OnReset: n.readerResets,
	})
	if err != nil {
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
	if n.server != nil {
		n.outputs = make([]*streams.FileSync, n.layout.Partitions)
		for p := range n.outputs {
			if n.outputs[p], err = streams.NewFileSync(n.server.JetStreamDir(), n.streams.Out[p].Name()); err != nil {
				return err
			}
		}
		// Streams that were made just now are to be there after a power failure.
		return streams.Syncfs(n.server.JetStreamDir())
	}
	return nil
}

// expectSaved refuses a service of another shape than the one whose jobs are here, before streams are made for it: to that
// one the jobs would look damaged.
func (n *Node) expectSaved(o *Options) error {
	saved := n.layout
	switch {
	case saved.Partitions == 0: // there are none, or they cannot be read
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

// expectLog does the same by the local log, where there is no checkpoint yet that tells. Its records would be put back into the
// other service's log, where they mean nothing.
func (n *Node) expectLog(o *Options) error {
	last := n.local.Last()
	if last == 0 {
		return nil
	}
	data, err := n.local.Get(last)
	if err != nil {
		return nil // left to recover
	}
	r, err := engine.DecodeRecord(last, data)
	if err != nil || strings.HasPrefix(r.Subject, o.Prefix+".log.") || strings.HasPrefix(r.Subject, o.Prefix+".cmd.") {
		return nil
	}
	return fmt.Errorf("node: data directory %s has the log of a service with another prefix than %q: there is %q", o.Data, o.Prefix, r.Subject)
}

// openJobs opens the job table. One that lost its end is how it was earlier, and the log goes on from there: whether it
// reaches back so far is seen when both are open. rest is what its compactions call (wal.Options.Rest).
func (n *Node) openJobs(rest func(behind bool)) (err error) {
	o := n.o.JobStore
	o.Dir, o.Logger, o.Profile, o.Rest = filepath.Join(n.o.Data, "jobs"), n.log, wal.ProfileTable, rest
	n.jobs, err = wal.OpenStore(o)
	var loss *wal.LossError
	if errors.As(err, &loss) {
		n.log.Warn("the job table lost its end; going on from an earlier checkpoint", "error", loss)
		o.AllowLoss = true
		n.jobs, err = wal.OpenStore(o)
	}
	if err != nil {
		return fmt.Errorf("node: job table: %w", err)
	}
	n.saved = snapshot.OpenTable(n.jobs)
	return nil
}

// openWithLoss opens a local log that lost its end, which is no loss while the stream still has the
// records: they are read again. It looks before it opens, since a store that was opened once forgets.
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
	if n.store, err = wal.OpenStore(o); err == nil {
		n.local = n.store.Log()
	}
	return err
}

// acceptsAll tells whether losses of every partition are accepted: the way out where the log itself is
// concerned.
func (n *Node) acceptsAll(partitions int) bool {
	for p := range partitions {
		if !n.o.AcceptLoss[p] {
			return false
		}
	}
	return true
}

func (n *Node) close() error {
	if n.streams != nil {
		n.streams.Close()
	}
	if n.nc != nil {
		if n.server == nil && n.nc.IsConnected() {
			_ = n.nc.FlushTimeout(leaveTimeout) // the last answers; closing takes with it what is not sent (dialer)
		}
		n.nc.Close()
	}
	if n.asked != nil {
		n.asked.Close()
	}
	if n.server != nil {
		n.server.Shutdown()
	}
	var err error
	for _, p := range n.partitions {
		if p != nil {
			p.mu.Lock()
			err = errors.Join(err, p.table.close())
			p.mu.Unlock()
		}
	}
	for _, store := range []*wal.Store{n.store, n.jobs} {
		if store != nil {
			err = errors.Join(err, store.Close())
		}
	}
	return err
}

// readerResets is told several times a second for as long as NATS is away.
func (n *Node) readerResets(err error) {
	n.resets.tell(n.log, time.Now(), "reading the log starts over", "error", err)
}

// stop ends one partition for good and says how to go on.
func (n *Node) stop(p *partition, err error) {
	p.mu.Lock()
	first := p.halt(err)
	p.mu.Unlock()
	if first {
		n.tellStopped(p, err)
	}
}

// halt has a partition go on no more, for the first reason that is given. Its caller holds mu.
func (p *partition) halt(err error) (first bool) {
	if first = p.stopped == nil; first {
		p.stopped = err
		p.owner.Epoch = 0
	}
	return first
}

func (n *Node) tellStopped(p *partition, err error) {
	ring(n.joined.changed)
	n.log.Error("partition stopped; see docs/operations.md", "partition", p.number, "error", err)
}

// whyStopped is nil for a partition that goes on.
func (p *partition) whyStopped() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}
