package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

var (
	// ErrNameTaken: another live member has the name. From Join: it had the name before. From Err: it took the name
	// over after this member had been silent for the bound, and goes on beating.
	ErrNameTaken = errors.New("cluster: the name is taken")
	// ErrBucket: the existing bucket cannot be used; the text says why, and what to do.
	ErrBucket = errors.New("cluster: bucket")
	// ErrPartitions: the bucket is that of a cluster with another number of partitions.
	ErrPartitions = errors.New("cluster: another number of partitions")
)

// Member is a node that has joined. Its methods may be called from any goroutine.
type Member struct {
	o        Options
	js       jetstream.JetStream
	kv       jetstream.KeyValue
	replicas int // that the bucket had
	key      string
	session  string
	start    time.Time // for the monotonic clock

	revision uint64                // of the member's key, as last written; used by beatLoop, and after its end by Leave
	putAt    atomic.Int64          // when a beat was last stored, by the monotonic clock
	failed   atomic.Pointer[error] // why the latest beat was not stored; nil: it was
	echoAt   atomic.Int64          // when a beat last came back by the watch, or the watch began
	looking  atomic.Bool           // a goroutine is looking whether the bucket is still there
	kick     chan struct{}         // something changed: placeLoop is to look
	renewed  chan struct{}         // the bucket may be another one: the watch is to begin again
	views    chan View
	stop     context.CancelFunc
	work     sync.WaitGroup
	known    chan struct{} // closed before the first view is sent
	done     chan struct{} // closed after views, when work has ended

	mu                sync.Mutex
	roster            *roster
	placement         storedPlacement
	placementRevision uint64 // revision of the placement in the bucket; 0: there is none
	watched           bool   // all of the bucket was read once
	view              View   // as last sent
	told              bool   // a view was sent
	err               error
}

// Join makes the node a member, and returns once its first beat is in the bucket. It makes the bucket if there is none.
// If the last session of that name did not Leave, Join waits for the bound and an interval, to see that it is gone. The context is only
// for joining.
//
// Errors: an option that cannot be used, ErrBucket, ErrPartitions, ErrNameTaken, what JetStream answers.
func Join(ctx context.Context, js jetstream.JetStream, o Options) (*Member, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	kv, replicas, err := openBucket(ctx, js, o)
	if err != nil {
		return nil, err
	}
	m := &Member{
		o: o, js: js, kv: kv, replicas: replicas, key: nodePrefix + o.Name, session: nuid.Next(), start: time.Now(),
		kick: make(chan struct{}, 1), renewed: make(chan struct{}, 1), views: make(chan View, 1), known: make(chan struct{}), done: make(chan struct{}),
	}
	m.roster = newRoster(m.session, o.Interval, o.Bound)
	if err := m.checkPartitions(ctx); err != nil {
		return nil, err
	}
	if err := m.takeName(ctx); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.work.Go(func() { m.watch(run) })
	m.work.Go(func() { m.ask(run) })
	m.work.Go(func() { m.beatLoop(run) })
	m.work.Go(func() { m.placeLoop(run) })
	go func() {
		m.work.Wait()
		close(m.views)
		close(m.done)
	}()
	return m, nil
}

// BucketReplicas is how many replicas the bucket had when the node joined.
func (m *Member) BucketReplicas() int { return m.replicas }

// Views delivers a new view after each change of who is live, of what their beats say (except figures that change all the time, such
// as positions), or of the placement. A view that was not received yet is replaced. The channel is closed when the member has ended.
func (m *Member) Views() <-chan View { return m.views }

// Known is closed once it is known which members are live.
func (m *Member) Known() <-chan struct{} { return m.known }

// View is the present view with each member's latest report. It is empty before the first of Views.
func (m *Member) View() View {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.told {
		return View{}
	}
	return m.current()
}

// BeatsFailing is how long no beat has been stored, and why the latest was not; 0 and nil if it was.
func (m *Member) BeatsFailing() (time.Duration, error) {
	if failed := m.failed.Load(); failed != nil {
		return m.now() - time.Duration(m.putAt.Load()), *failed
	}
	return 0, nil
}

// Err tells why Views was closed: ErrNameTaken, or nil after Leave or Close.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Leave ends the member and removes its key, so that others know at once. A key that a newer session of the name
// has written stays.
func (m *Member) Leave(ctx context.Context) error {
	m.Close()
	if m.Err() != nil {
		return nil
	}
	err := m.kv.Delete(ctx, m.key, jetstream.LastRevision(m.revision))
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) { // perhaps a beat was stored whose answer was lost
		var own bool
		if own, err = m.ownsKey(ctx); own {
			err = m.kv.Delete(ctx, m.key, jetstream.LastRevision(m.revision))
		}
	}
	if err != nil {
		return fmt.Errorf("cluster: leave: %w", err)
	}
	return nil
}

// Close ends the member and leaves its key: others take it for dead after the bound.
func (m *Member) Close() {
	m.stop()
	<-m.done
}

func (m *Member) now() time.Duration { return time.Since(m.start) }

func (m *Member) checkPartitions(ctx context.Context) error {
	e, err := m.kv.Get(ctx, placementKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) { // ErrKeyDeleted is one, too
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if p, err := parsePlacement(e.Value()); err == nil && len(p.Assignments) != m.o.Partitions {
		return fmt.Errorf("%w: bucket %s is of %d, this node has %d; if the engines of that service are gone for good: nats stream rm KV_%s",
			ErrPartitions, m.o.Bucket, len(p.Assignments), m.o.Partitions, m.o.Bucket)
	}
	return nil
}

// current is the view as it is now. The caller holds mu.
func (m *Member) current() View {
	return View{Members: m.roster.live(), Silent: m.roster.silent(), Placement: m.placement.Assignments, Revision: m.placementRevision}
}

// changed sends the view if it is a new one, and wakes placeLoop. The caller holds mu.
func (m *Member) changed() {
	if !m.watched || !m.told && !m.roster.settled() {
		return
	}
	view := m.current()
	if m.told && m.view.equal(view) {
		return
	}
	if !m.told {
		close(m.known)
	}
	m.view, m.told = view, true
	select {
	case <-m.views:
	default:
	}
	m.views <- view // does not block: nothing else sends, and this holds mu
	select {
	case m.kick <- struct{}{}:
	default:
	}
}
