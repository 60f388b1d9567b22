package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/alarm"
	"github.com/carillon-scheduler/carillon/internal/memory"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// Node is one run of the engine.
type Node struct {
	o       Options
	dataDir *os.File // the data directory
	session string   // of this run, in the ids of its messages
	log     *slog.Logger
	web     *web
	meters  *meters
	clock   clock
	layout  engine.Layout  // of the checkpoints, if there are any; else of the streams
	fail    func(error)    // ends the run
	work    sync.WaitGroup // goroutines that use what close closes

	// The local stores.
	logStore    *wal.Store // of the local log
	local       *wal.Log
	jobStore    *wal.Store      // the job table
	jobTable    *snapshot.Table // the checkpoints in jobs
	logKept     sync.RWMutex    // read-locked while the log and the checkpoints must stay; locked to drop some of them
	holdTicks   atomic.Bool     // the disk has too little room to fire
	refuseJobs  atomic.Bool     // the disk has too little room for new jobs
	recoverOnce func() error    // runs recover once, and returns its error each time
	rebuilt     atomic.Bool     // recover is over; from then on compactions look at the partitions
	restored    *restored       // at the first start after a restore; else nil
	snapshots   saving          // saves of snapshots

	// The way to NATS.
	server        *embedded.Server // nil: NATS is external
	url           string           // for clients
	nc            *nats.Conn
	wire          *streams.Wire         // under nc, to the embedded server
	endedAt       string                // URL of the server at which nc was when the run ended; "": at none
	requestConn   *nats.Conn            // for requests and their answers: a flood of them must not hold up the log, nor must clients that do not read
	requestWire   *streams.Wire         // under requestConn, to the embedded server
	unreached     atomic.Pointer[error] // why the last attempt to reconnect failed; the library does not keep it
	streams       *streams.Streams
	outputs       []*streams.FileSync // of the embedded server's output streams, by partition
	editedStreams editedStreams       // of the streams
	failedStreams failedStreams       // streams of the embedded server

	// Positions in the log.
	startsEmpty bool          // this node starts with nothing: it takes its partitions from other nodes
	logStart    uint64        // position at which the local log of a node that had nothing begins
	applied     atomic.Uint64 // stream sequence of the last record applied to every partition it concerns
	appliedAt   time.Time     // its timestamp, for the reader
	delivered   chan struct{} // notified when records were applied
	readAt      atomic.Int64  // when records were last applied, ns since the clock began
	appending   atomic.Int64  // when the append to the local log that is in progress began, by the node's clock, ns; 0: none is
	head        atomic.Uint64 // the log's last sequence, as far as known
	logEnd      logEndQuery   // asks the stream for its last sequence, once for all that want to know it at the same time
	waiters     appliedWaiters
	logUsage    logUsage      // how full the log stream is
	idleTrim    time.Duration // when a node that follows no partition last cut the log, since the clock began

	logHeard      atomic.Int64 // when the log stream last answered queryLog, ns since the clock began
	logHeardSince atomic.Int64 // since when it has answered without a break of tickTimeout, in the same unit

	// Partitions and their clockwork.
	partitions []*partition
	alarm      alarm.Alarm // wakes the clockwork
	ticking    ticking
	chained    streams.Chained // the next message of a chain; only the clockwork uses it
	window     window          // of outputs in flight; only the clockwork uses it

	// Requests and their answers.
	api      atomic.Pointer[micro.Service]
	requests requests
	replies  replies

	// With an external NATS: the other nodes, and slow servers.
	membership membership
	freshness  freshness
	lostRights lostRights
	partSaves  saving       // saves of partitions, for other nodes
	saveLock   sync.RWMutex // read-locked while partitions are being saved; locked to unfollow one
	servers    servers.Watch
	leaders    leaders
	switching  switching

	limitedLogs limitedLogs
}

// newNode makes a node that has yet to run. empty says that it begins with nothing.
func newNode(o Options, dataDir *os.File, w *web, empty bool) *Node {
	return &Node{
		o: o, dataDir: dataDir, log: o.Logger, web: w, meters: w.meters, session: rand.Text()[:10], startsEmpty: empty,
		delivered: make(chan struct{}, 1),
		requests: requests{
			lists: make(chan struct{}, maxLists), statuses: make(chan struct{}, maxStatuses), queries: make(chan struct{}, maxQueries),
			importJobs: semaphore.NewWeighted(maxImportJobs),
		},
	}
}

// run opens, starts and stops a node. When parent ends, the node hands over its partitions, answers the requests in progress, stops, and
// takes a checkpoint. When something fails (n.fail), it stops at once, and run returns why.
func (n *Node) run(parent context.Context, httpURL string, ready func(Ready)) (err error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)
	n.fail = func(err error) { cancel(err) }

	n.clock.begin(n.o.NATS != "")
	n.replies.init()
	if err := wantFiles(n.o.Data, n.startFiles()); err != nil {
		return markTransient(err)
	}
	n.alarm, err = alarm.New()
	if err != nil {
		return markTransient(fmt.Errorf("node: timer: %w", err))
	}
	defer n.alarm.Close()
	n.work.Go(func() {
		select {
		case <-parent.Done():
			n.finish(ctx)
			cancel(context.Cause(parent))
		case <-ctx.Done():
		}
	})
	if err := n.open(ctx); err != nil {
		cancel(nil)
		n.work.Wait()
		return markTransient(errors.Join(n.unreachable(err), n.close()))
	}
	if n.server == nil {
		n.join(ctx)
	}
	defer func() {
		cancel(nil)
		n.windDown()
		err = markTransient(errors.Join(err, n.close()))
	}()
	if err := n.start(ctx); err != nil {
		return err
	}
	n.web.ready.Store(true)
	ready(Ready{NATS: n.url, HTTP: httpURL, Partitions: n.layout.Partitions})

	<-ctx.Done()
	n.web.ready.Store(false)
	(*n.api.Load()).Stop()
	n.windDown()
	n.lastAnswers()
	if err := context.Cause(ctx); parent.Err() == nil && err != nil {
		return err
	}
	n.endRequests()
	return n.checkpointAll(context.WithoutCancel(ctx))
}

// start makes a node whose stores and streams are open take jobs: the node recovers, begins to read, tick and publish, claims its
// partitions, and answers requests.
func (n *Node) start(ctx context.Context) error {
	if err := n.recoverOnce(); err != nil {
		return err
	}
	if err := n.streams.Log.Await(ctx); err != nil { // else an election would end this run, and all would be recovered once more
		return n.unreachable(err)
	}
	if err := n.heal(ctx); err != nil {
		return n.unreachable(err)
	}
	if _, err := n.queryLog(ctx); err != nil { // if it is filling up, it is freed as soon as checkpointRound runs
		return n.unreachable(err)
	}
	if err := n.watchOutputs(); err != nil {
		return err
	}
	n.web.serve(n)

	n.work.Go(func() { n.watchStores(ctx) })
	n.work.Go(func() { n.read(ctx) })
	n.work.Go(func() { n.clockwork(ctx) })
	n.tend(ctx)
	n.work.Go(func() { n.replies.run(ctx) })
	if n.o.OwnProcess {
		n.work.Go(func() { memory.Tend(ctx, n.applied.Load) })
	}
	var err error
	if n.server == nil {
		err = n.participate(ctx)
	} else {
		err = n.claimAll(ctx)
	}
	if err != nil {
		return n.unreachable(cause(ctx, err))
	}
	n.awaitMembers(ctx)
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
	n.snapshots.open(ctx)
	n.partSaves.open(ctx)
	return nil
}

// cause returns why the run was ended, if it was, rather than the error that this caused in a waiting call.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// readerResets logs that the reader starts over. While NATS is away, it is called several times a second.
func (n *Node) readerResets(err error) {
	n.limitedLogs.resets.warn(n.log, "reading the log starts over", "error", err)
}
