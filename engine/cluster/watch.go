package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watch reads the bucket until the context ends. The client's watcher goes on by itself
// after most faults. Whether it really does shows in the member's own beats: if they are stored but do not
// come back, the watch is begun again, and brings everything that it missed.
func (m *Member) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		m.o.OnError(fmt.Errorf("cluster: watch: %w", err))
		if sleep(ctx, m.o.Interval) != nil {
			return
		}
	}
}

func (m *Member) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-m.renewed: // this watch is what was asked for
	default:
	}
	w, err := m.kv.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer dismiss(w)
	first, placement := true, false
	var renewed chan struct{} // m.renewed once all was read: placeLoop asks every interval, and would never let a watch get that far
	read := m.now()           // when the last key came of those that the bucket had
	m.echoAt.Store(int64(read))
	ticker := time.NewTicker(m.o.Bound)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-renewed:
			return errors.New("the bucket was made anew, or keys were purged from it")
		case <-ticker.C:
			if m.unheard() > m.o.Bound && m.now()-read > m.o.Bound { // a large bucket may take longer to read: own beats are behind the rest
				return errors.New("own beats do not come back")
			}
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return errors.New("it ended")
			case e == nil:
				m.noteLoaded(placement)
				first, renewed = false, m.renewed
			default:
				placement = placement || e.Key() == placementKey
				if first {
					read = m.now()
				}
				if m.take(e, first) {
					m.echoAt.Store(int64(m.now()))
				}
			}
		}
	}
}

// unheard is how long own beats have been stored and not come back by the watch.
func (m *Member) unheard() time.Duration { return time.Duration(m.putAt.Load() - m.echoAt.Load()) }

// ask reads the known keys of the bucket one by one for as long as the watch brings nothing, until the context ends. The
// watch is a consumer: the leader of all JetStream makes it, and it runs on any server. If either of these is lost,
// the bucket may still have a leader.
func (m *Member) ask(ctx context.Context) {
	ticker := time.NewTicker(m.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if m.unheard() > m.o.Interval*3/2 {
				m.askOnce(ctx)
			}
		}
	}
}

// askedAtOnce bounds how many keys of a large cluster are read at the same time.
const askedAtOnce = 16

// askOnce reads the placement and the key of each known member. It does not find members that join meanwhile.
func (m *Member) askOnce(ctx context.Context) {
	ctx, cancel := m.brief(ctx)
	defer cancel()
	var asked sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, key := range m.keys() {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			if e, err := m.get(ctx, key); err == nil { // after an error the next askOnce tries again
				m.takeNewer(e)
			}
		})
	}
	asked.Wait()
}

// getAgain is how long a read waits for its answer at first before another replica is asked as well.
const getAgain = 20 * time.Millisecond

// get reads a key from any replica. nats-server sends each request to a random one, also to one on a host that was just cut off, for as long
// as the connection between the servers stands. So others follow, after pauses that double, and the first answer counts. If only one of three
// was asked, a third of the reads would take until their time is up, and live members would now and then seem dead.
func (m *Member) get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	type answer struct {
		e   jetstream.KeyValueEntry
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	for pause := getAgain; ; pause *= 2 {
		go func() {
			e, err := m.kv.Get(ctx, key)
			select {
			case answers <- answer{e, err}:
			case <-ctx.Done():
			}
		}()
		again := time.NewTimer(pause)
		select {
		case a := <-answers:
			again.Stop()
			return a.e, a.err
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-again.C:
		}
	}
}

// keys are the known keys of the bucket.
func (m *Member) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := []string{placementKey}
	for name := range m.roster.members {
		keys = append(keys, nodePrefix+name)
	}
	return keys
}

// takeNewer takes a key that was read, unless a newer revision is known: a read goes to any replica, which may be behind.
func (m *Member) takeNewer(e jetstream.KeyValueEntry) {
	m.mu.Lock()
	known := m.placementRevision
	if name, node := strings.CutPrefix(e.Key(), nodePrefix); node {
		known = m.roster.revision(name)
	}
	var err error
	if e.Revision() > known {
		_, err = m.takeKey(e, false)
		m.changed()
	}
	m.mu.Unlock()
	if err != nil {
		m.o.OnError(err)
	}
}

// rewatch has the watch begin again.
func (m *Member) rewatch() {
	select {
	case m.renewed <- struct{}{}:
	default:
	}
}

// dismiss stops a watcher, and throws away what it still delivers: otherwise it might block on a full channel for ever. The member
// does not wait for that: if the context ends just when the watch has been made, the client library never closes the channel.
func dismiss(w jetstream.KeyWatcher) {
	_ = w.Stop() // an error means that it has ended already
	go func() {
		for range w.Updates() {
			continue
		}
	}()
}

// noteLoaded notes that everything that was in the bucket has been read; placement says whether it had a placement.
func (m *Member) noteLoaded(placement bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !placement {
		_ = m.takePlacement(nil) // fails only for a placement that cannot be decoded
	}
	m.watched = true
	m.changed()
}

// take takes a change of a key, and tells whether it is a beat of this session.
func (m *Member) take(e jetstream.KeyValueEntry, first bool) bool {
	m.mu.Lock()
	own, err := m.takeKey(e, first)
	m.changed()
	m.mu.Unlock()
	if err != nil {
		m.o.OnError(err)
	}
	return own
}

func (m *Member) takeKey(e jetstream.KeyValueEntry, first bool) (own bool, err error) {
	name, node := strings.CutPrefix(e.Key(), nodePrefix)
	switch {
	case e.Key() == placementKey:
		return false, m.takePlacement(e)
	case !node:
		return false, nil // perhaps of a newer version
	case e.Operation() != jetstream.KeyValuePut:
		m.roster.remove(name)
		return false, nil
	}
	b, err := parseBeat(e.Key(), e.Value())
	if err != nil {
		return false, err
	}
	m.roster.beat(m.now(), e.Revision(), b, first)
	return b.Session == m.session, nil
}
