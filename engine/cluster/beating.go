package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// takeName writes the first beat. It takes a key of another session over once that has not changed for the bound and an interval.
//
// A process that was killed and started again waits for its own former beat, too, even if it is alone: nothing distinguishes that from the
// beat of a live process that has the same name on another host. Such a process's claims and this one's would each count for both. The
// lock of the data directory shows only that no other process uses this directory; an id that is kept there would be in its copies as well.
func (m *Member) takeName(ctx context.Context) error {
	other := m.holder()
	for {
		e, err := m.kv.Get(ctx, m.key)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			err = m.firstBeat(ctx, func(ctx context.Context) (uint64, error) { return m.kv.Create(ctx, m.key, m.beat()) })
		case err != nil:
		default:
			other.read(m.now(), e.Revision())
			if other.alive() {
				return m.taken(e)
			}
			if !other.silent(m.now()) {
				if err := sleep(ctx, m.o.Interval); err != nil {
					return fmt.Errorf("cluster: join: %w", err)
				}
				continue
			}
			err = m.firstBeat(ctx, func(ctx context.Context) (uint64, error) { return m.kv.Update(ctx, m.key, m.beat(), e.Revision()) })
		}
		if err == nil {
			return nil
		}
		if !conflict(err) {
			return fmt.Errorf("cluster: join: %w", err)
		}
		other.since = m.now() // somebody wrote the key just now
		if err := sleep(ctx, m.o.Interval); err != nil {
			return fmt.Errorf("cluster: join: %w", err)
		}
	}
}

// holder judges from the revisions of a key whether another session that has the name is alive. Reads go to any replica. One that is
// behind returns older revisions, and while it catches up, their changes look like beats.
type holder struct {
	bound   time.Duration
	newest  uint64
	since   time.Duration // when newest was first read
	changes int
}

// changesIfAlive is how many changes show that a session is alive: more than a replica that catches up shows in reads that are an
// interval apart.
const changesIfAlive = 5

func (h *holder) read(now time.Duration, revision uint64) {
	if revision <= h.newest {
		return
	}
	if h.newest != 0 {
		h.changes++
	}
	h.newest, h.since = revision, now
}

func (m *Member) holder() holder { return holder{bound: m.o.Bound + m.o.Interval} }

func (h *holder) alive() bool { return h.changes >= changesIfAlive }

// silent tells whether the key has not changed for the bound and an interval.
func (h *holder) silent(now time.Duration) bool { return now-h.since > h.bound }

// writeTimeout bounds the first beat.
const writeTimeout = 5 * time.Second

// firstBeat writes the first beat. It does not stop when ctx ends meanwhile, because the beat might be stored all the same, and nobody
// would remove it: others would take it for a member that died.
func (m *Member) firstBeat(ctx context.Context, write func(context.Context) (uint64, error)) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	m.revision, err = write(ctx)
	return err
}

func conflict(err error) bool {
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}

func (m *Member) taken(e jetstream.KeyValueEntry) error {
	b, err := parseBeat(m.key, e.Value())
	if err != nil {
		return fmt.Errorf("%w: %q, by something that is no node: %w", ErrNameTaken, m.o.Name, err)
	}
	return fmt.Errorf("%w: %q is another live node of bucket %s (session %s); give this one another name",
		ErrNameTaken, b.Name, m.o.Bucket, b.Session)
}

func (m *Member) beat() []byte {
	data, err := json.Marshal(Beat{
		Node:    Node{Name: m.o.Name, Weight: m.o.Weight, Zone: m.o.Zone},
		Session: m.session, Version: m.o.Version, Standbys: max(m.o.Standbys, 0), Report: m.o.Report(),
	})
	if err != nil {
		panic(err) // cannot fail: strings and numbers
	}
	return data
}

// beatLoop beats every interval, until the context ends or the name is lost.
//
// A key that another session has written is taken back at once, because mostly nobody goes on beating: something wrote the key once, or a
// process that was frozen found its name in use. If that session writes it again, this one waits and watches (holder). So of two sessions
// that beat, the one that took the key first finds it written again, and ends; the other one beats on. One that has itself been silent for so
// long that another may have been given the name takes nothing back before it has watched: if it then stood still once more, it might find
// the other's second beat so late that it takes that for the first, and the other one would end.
func (m *Member) beatLoop(ctx context.Context) {
	ticker := time.NewTicker(m.o.Interval)
	defer ticker.Stop()
	other := m.holder()
	takenAt := -other.bound - 1 // when another session was last found to have the key
	beatAt := m.now()           // when the last beat was sent that was stored
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := m.now()
		entry, err := m.beatOnce(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			m.failed.Store(&err)
			m.o.OnError(err)
		case entry == nil:
			m.failed.Store(nil)
			other, beatAt = m.holder(), began
		default:
			now := m.now()
			first := now-takenAt > other.bound && now-beatAt <= other.bound
			takenAt = now
			other.read(now, entry.Revision())
			if other.alive() {
				m.end(m.taken(entry))
				return
			}
			if first || other.silent(now) {
				m.takeBack(ctx, entry)
			}
		}
	}
}

// takeBack writes a beat behind one of another session. If that goes on beating, the next beat of this one finds out.
func (m *Member) takeBack(ctx context.Context, e jetstream.KeyValueEntry) {
	brief, cancel := m.brief(ctx)
	defer cancel()
	revision, err := m.kv.Update(brief, m.key, m.beat(), e.Revision())
	if err == nil {
		m.stored(revision)
		err = fmt.Errorf("cluster: another session had written key %s", m.key)
	}
	if !conflict(err) && ctx.Err() == nil {
		m.o.OnError(err)
	}
}

// placeLoop places when something changed and every interval, and then also removes the keys of members that are long dead, until the
// context ends. It is a goroutine of its own, because beats must not wait for it.
func (m *Member) placeLoop(ctx context.Context) {
	ticker := time.NewTicker(m.o.Interval)
	defer ticker.Stop()
	var last outdated
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
		case <-ticker.C:
			if err := m.removeAbandoned(ctx); err != nil && ctx.Err() == nil {
				m.o.OnError(err)
			}
		}
		if err := m.place(ctx, &last); err != nil && ctx.Err() == nil {
			m.o.OnError(err)
		}
	}
}

func (m *Member) end(err error) {
	m.mu.Lock()
	m.err = err
	m.mu.Unlock()
	m.stop()
}

// brief bounds the wait for one answer: a dying server which does not answer must not make the member look dead.
func (m *Member) brief(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, m.o.Bound/2)
}

// create makes a key. If it was there and was deleted, that takes the library three requests, each of which may take as long as any other.
func (m *Member) create(ctx context.Context, key string, data []byte) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*m.o.Bound/2)
	defer cancel()
	return m.kv.Create(ctx, key, data)
}

// beatOnce writes a beat behind the one before. If another session has written the key, it returns that entry.
func (m *Member) beatOnce(ctx context.Context) (jetstream.KeyValueEntry, error) {
	brief, cancel := m.brief(ctx)
	defer cancel()
	revision, err := m.kv.Update(brief, m.key, m.beat(), m.revision)
	if conflict(err) {
		return m.resolveConflict(ctx)
	}
	if err != nil {
		if m.looking.CompareAndSwap(false, true) { // in a goroutine: while there is no leader, nobody answers it
			m.work.Go(func() {
				defer m.looking.Store(false)
				if err := m.reopen(ctx); err != nil && ctx.Err() == nil {
					m.o.OnError(err)
				}
			})
		}
		return nil, fmt.Errorf("cluster: beat: %w", err)
	}
	m.stored(revision)
	return nil, nil
}

// removeAbandoned removes the key of a member that is long dead: names of containers do not come back, and the bucket would fill with
// their keys. The first of the live members does this, for one key each interval. A member that was only frozen or cut off
// finds its key gone when it beats again, and writes it anew.
func (m *Member) removeAbandoned(ctx context.Context) error {
	m.mu.Lock()
	live := m.roster.live()
	name, revision, found := m.roster.abandoned()
	m.mu.Unlock()
	if !found || len(live) == 0 || live[0].Name != m.o.Name {
		return nil
	}
	ctx, cancel := m.brief(ctx)
	defer cancel()
	err := m.kv.Delete(ctx, nodePrefix+name, jetstream.LastRevision(revision))
	switch {
	case conflict(err): // it is alive, which the watch will show; or the bucket was made anew, and it was never in this one
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.roster.revision(name) == revision {
			m.roster.remove(name)
		}
	case err != nil:
		return fmt.Errorf("cluster: remove the key of %s: %w", name, err)
	}
	return nil
}

func (m *Member) stored(revision uint64) {
	m.revision = revision
	m.putAt.Store(int64(m.now()))
}

// reopen makes the bucket again if it is gone. Its content comes back: members write their beats, and the placement from memory. That takes
// four requests, one after the other, so it has the time of four answers.
func (m *Member) reopen(ctx context.Context) error {
	if !m.js.Conn().IsConnected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*m.o.Bound)
	defer cancel()
	_, _, err := openBucket(ctx, m.js, m.o)
	return err
}

// resolveConflict finds out why the key has another revision. Either a beat was stored and its answer was lost; or the key was removed or
// the bucket made anew; or something other than a node wrote it (which the watch reports); or another session has the name.
// In the last case it returns that session's entry. Each request has a time of its own: if all had to be answered within that of one, a
// member whose requests take longer than a third of it would never beat again once an answer was lost.
func (m *Member) resolveConflict(ctx context.Context) (jetstream.KeyValueEntry, error) {
	reading, cancel := m.brief(ctx)
	defer cancel()
	e, err := m.get(reading, m.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		revision, err := m.create(ctx, m.key, m.beat())
		switch {
		case err == nil:
			m.stored(revision)
			m.rewatch() // all other keys may be gone, too
		case !conflict(err):
			return nil, fmt.Errorf("cluster: beat: %w", err)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: beat: %w", err)
	}
	if b, err := parseBeat(m.key, e.Value()); err == nil && b.Session != m.session {
		return e, nil
	}
	m.revision = e.Revision()
	writing, cancel := m.brief(ctx)
	defer cancel()
	switch revision, err := m.kv.Update(writing, m.key, m.beat(), m.revision); { // at once: others are waiting for a beat
	case err == nil:
		m.stored(revision)
	case !conflict(err): // after a conflict the next beat tries again: the read was from a replica that is behind
		return nil, fmt.Errorf("cluster: beat: %w", err)
	}
	return nil, nil
}

// ownsKey tells whether the key is this session's, and if so notes its revision.
func (m *Member) ownsKey(ctx context.Context) (bool, error) {
	e, err := m.kv.Get(ctx, m.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if b, err := parseBeat(m.key, e.Value()); err != nil || b.Session != m.session {
		return false, nil
	}
	m.revision = e.Revision()
	return true, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
