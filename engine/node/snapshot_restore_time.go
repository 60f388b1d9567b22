package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// The restore of a snapshot and the log after it, up to a time.

// ErrOutOfLog says that there is no snapshot from which the log reaches the time.
var ErrOutOfLog = errors.New("node: the time is out of reach")

// RestoreToTime makes dir a data directory with the jobs as they were at a time. It takes the jobs of a snapshot from before the time,
// and applies what came after it in the local log of another data directory, log. No process may run on log, which is not changed, and
// its local log must go back to the snapshot (Options.KeepLog). id "" is the service's newest snapshot before the time. What had fired
// by then does not fire again, except triggers that the log does not know to be stored: those of its last second, at most.
//
// The service may have been restored before. Then snapshots of the history that it left by that do not count as the service's, nor does
// the one that it was made of if that restore changed anything.
//
// Errors: ErrOutOfLog, ErrDataInUse, engine.ErrDiverged if replay comes to another state than the log's digests say, those of Restore.
func RestoreToTime(ctx context.Context, t archive.Target, id, dir string, at time.Time, log string, o RestoreOptions) (*Restored, error) {
	if err := wantStore(log, "log"); err != nil {
		return nil, err // opening the log would make it
	}
	lock, err := lockData(log)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	m, err := snapshotBefore(ctx, t, id, log, at, o.Logger)
	if err != nil {
		return nil, err
	}
	r, states, err := newRestored(m)
	if err != nil {
		return nil, err
	}
	if claimedByNewer(states) {
		return nil, newerSnapshot(m)
	}
	if dir, err = restoreInto(dir, t); err != nil {
		return nil, err
	}
	done := &Restored{Manifest: m, Partitions: r.Partitions}
	_, err = archive.Restore(ctx, t, m.ID, dir, archive.RestoreOptions{
		Logger: o.Logger, Progress: o.Progress,
		Finish: func(dir string) error {
			if r.Position, done.Jobs, err = replayUntil(ctx, dir, log, at.UnixMilli(), r.Position, o); err != nil {
				return err
			}
			return r.write(dir)
		},
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

// prefixOfLog is the subject prefix of the service that a local log belongs to, from its first record.
func prefixOfLog(l *wal.Log) (prefix string, err error) {
	err = l.Read(l.First(), func(stored wal.Record) error {
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		prefix, _, _ = strings.Cut(r.Subject, ".")
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		return prefix, nil
	case err == nil:
		err = fmt.Errorf("%w: it is empty", ErrOutOfLog)
	}
	return "", err
}

// snapshotBefore finds the newest snapshot of a local log's service that has nothing after a time. If id is not "", it checks that one.
func snapshotBefore(ctx context.Context, t archive.Target, id, data string, at time.Time, logger *slog.Logger) (_ *archive.Manifest, err error) {
	store, err := openLogIn(data, logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	prefix, err := prefixOfLog(store.Log())
	if err != nil {
		return nil, fmt.Errorf("the log in %s: %w", data, err)
	}
	entries, err := archive.List(ctx, t)
	if err != nil {
		return nil, err
	}
	of := logOf{store.Log(), data, prefix, 0}
	of.partitions, _ = SavedPartitions(data) // if it cannot be read, or is not there, the log will do
	m, err := of.newestFitting(entries, id, at)
	switch {
	case m != nil || err != nil:
		return m, err
	case id != "":
		return nil, fmt.Errorf("%w: snapshot %s in %s", archive.ErrNotFound, id, t)
	}
	return nil, fmt.Errorf("%w: %s has no snapshot from before %s of the service with the prefix %q", ErrOutOfLog, t, at.UTC().Format(carillon.TimeFormat), prefix)
}

// logOf is the log of a service.
type logOf struct {
	log        *wal.Log
	data       string // the data directory that has it
	prefix     string
	partitions int // 0: not known
}

// newestFitting is the first of some snapshots, newest first, from which the log reaches the time. nil without an error: there is none of
// this service from before the time, or none with this id.
func (l *logOf) newestFitting(entries []archive.Entry, id string, at time.Time) (*archive.Manifest, error) {
	var unfit error // why the newest does not fit; an earlier one will do, with more of the log to replay
	for _, e := range entries {
		switch {
		case id != "" && e.ID != id:
			continue
		case e.Err != nil:
			unfit = cmp.Or(unfit, e.Err)
			continue
		case id == "" && e.Manifest.Prefix != l.prefix:
			continue
		case e.Manifest.Prefix != l.prefix:
			return nil, fmt.Errorf("node: snapshot %s is of a service with the prefix %q, and the log of one with %q", id, e.Manifest.Prefix, l.prefix)
		}
		_, states, err := newRestored(e.Manifest)
		if err != nil { // a newer version may have saved it
			unfit = cmp.Or(unfit, err)
			continue
		}
		if latest := latestOf(states); latest > at.UnixMilli() {
			if id != "" {
				return nil, fmt.Errorf("%w: snapshot %s has what happened up to %s", ErrOutOfLog, id, formatMilli(latest))
			}
			continue
		}
		switch err := l.sameHistory(e.Manifest, states); {
		case err == nil:
			return e.Manifest, nil
		case !errors.Is(err, ErrOutOfLog):
			return nil, err
		default:
			unfit = cmp.Or(unfit, fmt.Errorf("the log in %s: %w", l.data, err))
		}
	}
	return nil, unfit
}

// sameHistory returns ErrOutOfLog if a log and a snapshot are of different histories, or the log ends before the snapshot. A restored
// service begins a history of its own: it goes on above an earlier snapshot, and at sequences where the former service had claims it has
// others. So up to the snapshot, the claim in force of each partition must be the same in the log and in the snapshot. And they must have
// as many partitions.
func (of *logOf) sameHistory(m *archive.Manifest, states []*engine.SavedState) error {
	if of.partitions != 0 && of.partitions != len(states) {
		return fmt.Errorf("%w: snapshot %s is of another history, with %d partitions (here %d)", ErrOutOfLog, m.ID, len(states), of.partitions)
	}
	l := of.log
	from, to := l.Last(), uint64(0)
	last := func(p int) uint64 { return max(m.Partitions[p].Position, states[p].Position) }
	for p, s := range states {
		from, to = min(from, max(s.Epoch, l.First())), max(to, last(p))
	}
	if to > l.Last() {
		return fmt.Errorf("%w: snapshot %s ends at sequence %d, and the log before that, at %d", ErrOutOfLog, m.ID, to, l.Last())
	}
	layout := engine.Layout{Prefix: m.Prefix, Partitions: len(states)}
	claims := make([]uint64, len(states))
	err := l.Read(from, func(stored wal.Record) error {
		if stored.Seq > to {
			return errFound
		}
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		e := layout.Decode(&r)
		if e.Kind == engine.KindClaim && stored.Seq <= last(e.Partition) && (e.Seq == states[e.Partition].Epoch || states[e.Partition].Accepts(e.Claim)) {
			claims[e.Partition] = max(claims[e.Partition], e.Seq) // one that was put back (healHoles) may repeat an earlier one
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFound) {
		return err
	}
	for p, s := range states {
		if claims[p] != s.Epoch && (claims[p] != 0 || s.Epoch >= l.First()) {
			return fmt.Errorf("%w: snapshot %s is of another history, in which partition %d was claimed at sequence %d last (here at %d, 0 for never)", ErrOutOfLog, m.ID, p, s.Epoch, claims[p])
		}
	}
	return nil
}

// latestOf is the latest time that any partition of a snapshot has reached, unix ms.
func latestOf(states []*engine.SavedState) (latest int64) {
	for _, s := range states {
		latest = max(latest, s.Now)
	}
	return latest
}

func formatMilli(ms int64) string { return time.UnixMilli(ms).UTC().Format(carillon.TimeFormat) }

// replayUntil applies the log of one data directory to the job table of another, up to a time, and prepares the table
// for new streams. It returns the position above which the new log begins, and how many jobs there are.
func replayUntil(ctx context.Context, dir, log string, until int64, position uint64, ro RestoreOptions) (_ uint64, jobs int, err error) {
	n, err := openStopped(Options{Data: dir, Logger: ro.Logger}.withDefaults(), log)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.checkReach(position, until, log); err != nil {
		return 0, 0, err
	}
	if err := n.openPartitions(); err != nil {
		return 0, 0, err
	}
	r := replayer{n: n, from: n.oldest(), position: position, until: until, progress: ro.Replayed, stored: make([]uint64, len(n.partitions))}
	if err := r.run(ctx); err != nil {
		return 0, 0, err
	}
	if ro.Missed != nil {
		r.position = apartFrom(r.position)
	}
	for _, p := range n.partitions {
		jobs += p.machine.Stats().Jobs
		if err := n.takeCheckpoint(ctx, p); err != nil {
			return 0, 0, err
		}
		if err := n.onNewStreams(p, r.position, r.stored[p.number], ro.Missed); err != nil {
			return 0, 0, err
		}
	}
	return r.position, jobs, ctx.Err()
}

// checkReach returns ErrOutOfLog unless the log has everything from a snapshot to a time. position is the snapshot's greatest.
func (n *Node) checkReach(position uint64, until int64, log string) error {
	first, seq, err := n.timeFrom(n.local.First())
	if err != nil {
		return err
	}
	oldest := position
	for p := range n.layout.Partitions {
		list, err := n.jobTable.List(uint16(p))
		if err != nil {
			return err
		}
		if len(list) > 0 {
			oldest = min(oldest, list[0].Position)
		}
	}
	if seq > oldest+1 {
		return fmt.Errorf("%w: the log in %s begins at sequence %d, of %s, and the snapshot ends at %d; see carillon serve --keep-log",
			ErrOutOfLog, log, seq, formatMilli(first), oldest)
	}
	last, _, err := n.timeFrom(n.local.Last())
	if err != nil {
		return err
	}
	if last < until {
		return fmt.Errorf("%w: the log in %s ends at %s", ErrOutOfLog, log, formatMilli(last))
	}
	return nil
}

// replayer applies the log up to a time.
type replayer struct {
	n        *Node
	from     uint64
	until    int64 // unix ms
	progress func(done, total uint64)

	last     uint64   // greatest sequence that was read
	position uint64   // of the last record up to that time
	records  uint64   // since the last checkpoint
	bytes    uint64   // of those
	past     bool     // everything up to that time is applied
	stored   []uint64 // by partition: later ticks say that outputs up to this number were stored
}

func (r *replayer) run(ctx context.Context) error {
	r.last = r.from
	_, err := r.n.replay(ctx, r.from, func(e *engine.Entry, size int) error {
		// A record that was put back at the log's end (healHoles) has the time of its old place, which says nothing of the log's clock. The
		// machines ignore what they have.
		putBack := e.Seq <= r.last
		r.last = max(r.last, e.Seq)
		switch r.past = r.past || !putBack && e.Time > r.until; {
		case !r.past:
			return r.apply(ctx, e, size)
		case putBack:
			return nil
		}
		return r.readPast(e)
	})
	return err // replay reads to the log's end, because only later records show whether the log has the time twice
}

func (r *replayer) apply(ctx context.Context, e *engine.Entry, size int) error {
	n := r.n
	if err := n.replayRecord(e); err != nil {
		return err
	}
	r.position = max(r.position, e.Seq)
	n.applied.Store(r.last)
	r.records, r.bytes = r.records+1, r.bytes+uint64(size)
	due := r.records >= n.o.CheckpointRecords || r.bytes >= n.o.CheckpointBytes
	if r.progress != nil && (due || r.records%4096 == 0) {
		r.progress(r.last-r.from, n.local.Last()-r.from)
	}
	if !due {
		return nil
	}
	r.records, r.bytes = 0, 0
	return r.unload(ctx, e.Time)
}

// unload takes checkpoints during the replay, and has jobs leave memory as a running node does, so that memory holds neither all changes
// nor all jobs.
func (r *replayer) unload(ctx context.Context, now int64) error {
	for _, p := range r.n.partitions {
		if err := r.n.takeCheckpoint(ctx, p); err != nil {
			return err
		}
		if err := r.n.loadAndEvictIn(ctx, p, now); err != nil {
			return err
		}
	}
	return nil
}

// setBack is more than a log's clock goes back when another server becomes its leader, ms.
const setBack = 1000

// readPast reads a record from after the time. Its ticks tell which outputs were stored. It returns ErrOutOfLog if the log's clock was set
// back: then the log has the time twice, and nobody knows which of the two is meant.
func (r *replayer) readPast(e *engine.Entry) error {
	if e.Time < r.until-setBack {
		return fmt.Errorf("%w: the log has it twice, up to sequence %d and from %d on, of %s, as its clock was set back",
			ErrOutOfLog, r.position, e.Seq, formatMilli(e.Time))
	}
	for _, t := range e.Ticks {
		if t.Partition < len(r.stored) {
			r.stored[t.Partition] = max(r.stored[t.Partition], t.Acked.Output)
		}
	}
	return nil
}

// onNewStreams writes a partition's checkpoint anew for a service that begins with new streams (engine.SavedState.OnNewStreams).
func (n *Node) onNewStreams(p *partition, position, stored uint64, missed *carillon.Misfire) error {
	build, err := n.jobTable.Begin(uint16(p.number))
	if err != nil {
		return err
	}
	defer build.Abort()
	err = n.jobTable.View(uint16(p.number), func(v *snapshot.View) error {
		state, err := v.State()
		if err != nil {
			return err
		}
		s, err := engine.ReadState(state)
		if err != nil {
			return err
		}
		if missed != nil {
			s.OverrideMisfire(*missed)
		}
		build.State(position, s.OnNewStreams(stored))
		return nil
	})
	if err != nil {
		return err
	}
	return n.commit(build)
}
