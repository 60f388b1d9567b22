package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// slowBucket is a bucket in memory that takes so long for each request. In a synctest bubble that is exact.
type slowBucket struct {
	jetstream.KeyValue
	took time.Duration

	mu   sync.Mutex
	away bool // no request is answered
	last uint64
	keys map[string]*slowEntry
}

type slowEntry struct {
	jetstream.KeyValueEntry
	key      string
	value    []byte
	revision uint64
	deleted  bool
}

func (e *slowEntry) Key() string      { return e.key }
func (e *slowEntry) Value() []byte    { return e.value }
func (e *slowEntry) Revision() uint64 { return e.revision }

func (e *slowEntry) Operation() jetstream.KeyValueOp {
	if e.deleted {
		return jetstream.KeyValueDelete
	}
	return jetstream.KeyValuePut
}

// slowly does something with a bucket half way through the time of a request, and returns its result when that is over, or the context's
// error.
func slowly[T any](ctx context.Context, b *slowBucket, do func() (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	answered := make(chan answer, 1)
	time.AfterFunc(b.took/2, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.away {
			return
		}
		result, err := do()
		time.AfterFunc(b.took/2, func() { answered <- answer{result, err} })
	})
	select {
	case a := <-answered:
		return a.result, a.err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// put stores what comes behind a revision, without a request. The caller holds mu.
func (b *slowBucket) put(key string, value []byte, behind uint64, deleted bool) (revision uint64, err error) {
	if e := b.keys[key]; e != nil && e.revision != behind || e == nil && behind != 0 {
		return 0, jetstream.ErrKeyRevisionMismatch
	}
	b.last++
	b.keys[key] = &slowEntry{key: key, value: value, revision: b.last, deleted: deleted}
	return b.last, nil
}

// mustPut is put by a test, which is never refused.
func (b *slowBucket) mustPut(t testing.TB, key string, value []byte, behind uint64, deleted bool) (revision uint64) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	revision, err := b.put(key, value, behind, deleted)
	if err != nil {
		t.Error(err)
	}
	return revision
}

func (b *slowBucket) Update(ctx context.Context, key string, value []byte, behind uint64) (revision uint64, err error) {
	return slowly(ctx, b, func() (uint64, error) { return b.put(key, value, behind, false) })
}

func (b *slowBucket) read(ctx context.Context, key string) (*slowEntry, error) {
	return slowly(ctx, b, func() (*slowEntry, error) { return b.keys[key], nil })
}

func (b *slowBucket) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	e, err := b.read(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case e == nil || e.deleted:
		return nil, jetstream.ErrKeyNotFound
	}
	return e, nil
}

// Create makes as many requests as the client library does.
func (b *slowBucket) Create(ctx context.Context, key string, value []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	revision, err := b.Update(ctx, key, value, 0)
	if err == nil {
		return revision, nil
	}
	if e, err := b.read(ctx, key); err == nil && e != nil && e.deleted {
		return b.Update(ctx, key, value, e.revision)
	}
	return 0, err
}

// newest is a key's revision, without a request; 0 if it is not there.
func (b *slowBucket) newest(key string) (revision uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.keys[key]; e != nil {
		revision = e.revision
	}
	return revision
}

func newSlowBucket(o Options) *slowBucket {
	return &slowBucket{took: o.Bound/2 - time.Millisecond, keys: make(map[string]*slowEntry)}
}

// slowMember is a member in a bubble whose bucket takes almost as long for each request as a member waits for an answer.
func slowMember(b *slowBucket) *Member {
	o := options("a").withDefaults()
	return &Member{
		o: o, kv: b, key: nodePrefix + "a", session: "s", start: time.Now(), roster: newRoster("s", o.Interval, o.Bound),
		kick: make(chan struct{}, 1), renewed: make(chan struct{}, 1), views: make(chan View, 1), known: make(chan struct{}),
	}
}

// If each request takes most of the time that a member waits for an answer, it still finds out why its beat was refused, which takes
// several requests, and beats again.
func TestBeatsWhereRequestsAreSlow(t *testing.T) {
	for what, happens := range map[string]func(t testing.TB, m *Member, b *slowBucket){
		"the answer to a beat was lost": func(t testing.TB, m *Member, b *slowBucket) { b.mustPut(t, m.key, m.beat(), m.revision, false) },
		"the key was removed":           func(t testing.TB, m *Member, b *slowBucket) { b.mustPut(t, m.key, nil, m.revision, true) },
		"the bucket was made anew":      func(_ testing.TB, _ *Member, b *slowBucket) { b.last = 0; clear(b.keys) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSlowBucket(options("a").withDefaults())
				m := slowMember(b)
				for range 2 {
					m.revision = b.mustPut(t, m.key, m.beat(), m.revision, false)
				}
				happens(t, m, b)
				other, err := m.beatOnce(t.Context())
				if stored := b.newest(m.key); other != nil || err != nil || m.putAt.Load() == 0 || m.revision != stored {
					t.Errorf("%v, %v; the beat at revision %d is taken for %d", other, err, stored, m.revision)
				}
			})
		})
	}
}

// The same holds for a placement: over one that was deleted another is written, and one that was purged is found to be.
func TestPlacesWhereRequestsAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBucket(options("a").withDefaults())
		m := slowMember(b)
		written := b.mustPut(t, placementKey, nil, 0, false)
		b.mustPut(t, placementKey, nil, written, true)
		p := storedPlacement{Nodes: []Node{{Name: "a", Weight: 1}}}
		if err := m.writePlacement(t.Context(), p, 0); err != nil || m.placementRevision != b.newest(placementKey) {
			t.Errorf("over a deleted one: %v; it is at revision %d", err, m.placementRevision)
		}
		clear(b.keys)
		if err := m.writePlacement(t.Context(), p, m.placementRevision); err != nil || len(m.renewed) != 1 {
			t.Errorf("over a purged one: %v; the watch is to begin again: %t", err, len(m.renewed) == 1)
		}
	})
}

// slowAPI is a JetStream without the bucket that takes so long for each request.
type slowAPI struct {
	jetstream.JetStream
	*slowBucket
	made bool // under mu
}

func (a *slowAPI) KeyValue(ctx context.Context, _ string) (jetstream.KeyValue, error) {
	return slowly(ctx, a.slowBucket, func() (jetstream.KeyValue, error) { return nil, jetstream.ErrBucketNotFound })
}

// CreateKeyValue makes two requests, as the client library does, which asks about the account first.
func (a *slowAPI) CreateKeyValue(ctx context.Context, _ jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	if _, err := a.Status(ctx); err != nil {
		return nil, err
	}
	return slowly(ctx, a.slowBucket, func() (jetstream.KeyValue, error) {
		a.made = true
		return a.slowBucket, nil
	})
}

func (b *slowBucket) Status(ctx context.Context) (jetstream.KeyValueStatus, error) {
	return slowly(ctx, b, func() (jetstream.KeyValueStatus, error) { return slowStatus{}, nil })
}

type slowStatus struct{ jetstream.KeyValueStatus }

func (slowStatus) Config() jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{Replicas: 1, Storage: jetstream.FileStorage}
}

// A bucket that was lost is made anew even if each request for that takes so long.
func TestBucketIsMadeWhereRequestsAreSlow(t *testing.T) {
	t.Parallel()
	js, _ := newHost(t).connect()
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBucket(options("a").withDefaults())
		m, api := slowMember(b), &slowAPI{JetStream: js, slowBucket: b}
		m.js = api
		err := m.reopen(t.Context())
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil || !api.made {
			t.Errorf("%v; it was made: %t", err, api.made)
		}
	})
}

// WatchAll delivers the keys in order of revisions, each in the time of a request, and behind as many as there were at first nil.
func (b *slowBucket) WatchAll(ctx context.Context, _ ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	b.mu.Lock()
	pending := len(b.keys)
	b.mu.Unlock()
	w := slowWatch{updates: make(chan jetstream.KeyValueEntry)}
	deliver := func(e jetstream.KeyValueEntry) {
		select {
		case w.updates <- e:
		case <-ctx.Done():
		}
	}
	go func() {
		defer close(w.updates)
		for read := uint64(0); ctx.Err() == nil; {
			next, _ := slowly(ctx, b, func() (next *slowEntry, _ error) {
				for _, e := range b.keys {
					if e.revision > read && (next == nil || e.revision < next.revision) {
						next = e
					}
				}
				return next, nil
			})
			if next == nil {
				continue
			}
			deliver(next)
			if read, pending = next.revision, pending-1; pending == 0 {
				deliver(nil)
			}
		}
	}()
	return w, nil
}

type slowWatch struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
}

func (w slowWatch) Updates() <-chan jetstream.KeyValueEntry { return w.updates }
func (slowWatch) Stop() error                               { return nil }

// A watch that needs far longer than the bound to read the whole bucket does so, although own beats do not come back before that.
func TestLargeBucketIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBucket(options("a").withDefaults())
		for i := range 20 {
			name := fmt.Sprintf("b%d", i)
			beat, err := json.Marshal(said(name, name))
			if err != nil {
				t.Fatal(err)
			}
			b.mustPut(t, nodePrefix+name, beat, 0, false)
		}
		m := slowMember(b)
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		defer work.Wait()
		defer stop()
		work.Go(func() { m.watch(ctx) })
		work.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(m.o.Interval) { // beats that are stored at once
				m.stored(b.mustPut(t, m.key, m.beat(), m.revision, false))
			}
		})
		time.Sleep(time.Minute)
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.watched || len(m.roster.members) != 21 {
			t.Errorf("after a minute it has read %d of 21 keys; all: %t", len(m.roster.members), m.watched)
		}
	})
}

// A member that was silent for so long that another session has its name takes nothing back from that, and ends.
func TestSilentMemberGivesItsNameUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlowBucket(options("a").withDefaults())
		b.took = time.Millisecond
		m := slowMember(b)
		m.looking.Store(true) // the bucket is there
		var ctx context.Context
		ctx, m.stop = context.WithCancel(t.Context())
		defer m.stop()
		m.revision = b.mustPut(t, m.key, m.beat(), 0, false)
		go m.beatLoop(ctx)
		time.Sleep(5 * m.o.Interval)
		setAway := func(away bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.away = away
		}
		setAway(true)
		time.Sleep(2 * m.o.Bound)
		setAway(false)
		other, err := json.Marshal(said("a", "other"))
		if err != nil {
			t.Fatal(err)
		}
		revision := b.newest(m.key)
		for ctx.Err() == nil {
			b.mu.Lock()
			revision, err = b.put(m.key, other, revision, false)
			b.mu.Unlock()
			if err != nil {
				t.Fatal("the member that was silent took its name back")
			}
			time.Sleep(m.o.Interval)
		}
		if !errors.Is(m.Err(), ErrNameTaken) {
			t.Errorf("it ended with %v", m.Err())
		}
	})
}
