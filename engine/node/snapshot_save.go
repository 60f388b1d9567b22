package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/schedule"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// Saves of snapshots, by a running node.

// saveShare is the part of one core that a save may take, so that firing goes on. The same holds for a node that reads a partition which
// another node saved for it.
const saveShare = 0.5

// progressEvery is how often a save in progress tells how far it is.
const progressEvery = 250 * time.Millisecond

// saving admits saves of one kind, one at a time: snapshots, or partitions for other nodes.
type saving struct {
	mu      sync.Mutex
	ctx     context.Context // of the run; nil: no save may begin
	current *save
}

// save is one save, from the request until it has ended.
type save struct {
	id     string // the id of the client's request; may be ""
	cancel context.CancelFunc
	ended  chan struct{}
	saved  bool // the snapshot was saved; set before ended is closed

	mu       sync.Mutex
	progress carillon.SnapshotReply
}

// open lets saves begin, until ctx ends.
func (s *saving) open(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
}

// close gives up the save in progress, and lets no other begin.
func (s *saving) close() {
	s.mu.Lock()
	s.ctx = nil
	current := s.current
	s.mu.Unlock()
	if current != nil {
		current.cancel()
		<-current.ended
	}
}

func (s *saving) begin(id string) (*save, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx == nil || s.ctx.Err() != nil:
		return nil, nil, &carillon.Error{Code: carillon.CodeUnavailable, Message: "the node is stopping"}
	case s.current != nil:
		return nil, nil, &carillon.Error{Code: carillon.CodeLimitExceeded, Message: "another snapshot is being saved"}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.current = &save{id: id, cancel: cancel, ended: make(chan struct{}), progress: carillon.SnapshotReply{Phase: carillon.SnapshotCheckpoint}}
	return s.current, ctx, nil
}

func (s *saving) end(one *save) {
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	one.cancel()
	close(one.ended)
}

// cancel gives a save up and waits until it has ended. Error: carillon.CodeNotFound if there is no save with this id, or the
// snapshot was complete before it could be given up.
func (s *saving) cancel(id string) error {
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current == nil || current.id != id {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "no such snapshot is being saved"}
	}
	current.cancel()
	<-current.ended
	if current.saved {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "the snapshot was saved before it could be given up"}
	}
	return nil
}

// cancelSubject is the subject on which nodes that share a NATS tell each other which save to give up.
func (n *Node) cancelSubject() string { return n.o.Prefix + ".api.snapshot-cancel" }

// subscribeCancels subscribes to requests that other nodes received: to give a save up. Each gets a goroutine, because a save takes a while
// to end; mostly this node has no such save.
func (n *Node) subscribeCancels() error {
	_, err := n.requestConn.Subscribe(n.cancelSubject(), func(m *nats.Msg) { go func() { _ = n.snapshots.cancel(string(m.Data)) }() })
	return err
}

// apiSnapshot saves a snapshot, and reports its progress until it has ended. Or it gives one up.
func (n *Node) apiSnapshot(c *call) error {
	r, err := carillon.ParseSnapshot(c.Data())
	if err != nil {
		return err
	}
	if r.Cancel != "" {
		if err := n.snapshots.cancel(r.Cancel); err != nil {
			// Another node may be the one that saves. The client gets the error all the same, and may ask again.
			_ = n.nc.Publish(n.cancelSubject(), []byte(r.Cancel))
			return err
		}
		return c.answer((&carillon.SnapshotReply{Phase: carillon.SnapshotCancelled}).AppendJSON(nil))
	}
	one, ctx, err := n.snapshots.begin(c.Headers().Get(carillon.HeaderRequest))
	if err != nil {
		return err
	}
	saying := make(chan struct{})
	go func() {
		defer close(saying)
		one.reportProgress(c)
	}()
	saved, where, err := n.save(ctx, &r, one)
	cancelled := ctx.Err() != nil // looked at before end, which cancels the context
	one.saved = err == nil
	n.snapshots.end(one)
	<-saying
	switch {
	case err == nil:
		totals := saved.Manifest.Totals()
		return c.answer((&carillon.SnapshotReply{
			Phase: carillon.SnapshotDone, Done: totals.Raw, Total: totals.Raw, Rows: totals.Pairs, Blocks: totals.Blocks,
			ID: saved.Manifest.ID, Archive: where, Partitions: len(saved.Manifest.Partitions), Written: saved.Written, WrittenBytes: saved.Bytes,
		}).AppendJSON(nil))
	case cancelled:
		return c.answer((&carillon.SnapshotReply{Phase: carillon.SnapshotCancelled}).AppendJSON(nil))
	}
	n.limitedLogs.saves.logAtMost(saveErrorLines, n.log.Warn, "no snapshot was saved", "error", err)
	return saveRefusal(err)
}

// saveRefusal gives an error of a save the code for its client.
func saveRefusal(err error) error {
	var refused *carillon.Error
	switch {
	case errors.As(err, &refused):
		return err
	case errors.Is(err, archive.ErrLocked):
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: err.Error()}
	case mayBeBack(err):
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: err.Error()}
	}
	return &carillon.Error{Code: carillon.CodeInternal, Message: err.Error()}
}

// noPeers is JetStream's code (JSClusterNoPeersErrF) for a cluster with too few servers up to place a stream.
const noPeers = 10005

// mayBeBack tells whether an error says that NATS, or too many of its servers, are away and may come back.
func mayBeBack(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.Code == 503 || api.ErrorCode == noPeers
	}
	return errors.Is(unreachable(err), errUnreachable)
}

// reportProgress sends the progress to the client every progressEvery, until the save has ended.
func (s *save) reportProgress(c *call) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		s.mu.Lock()
		body := s.progress.AppendJSON(nil)
		s.mu.Unlock()
		_ = c.answer(body) // a client that does not get it will ask again, or cancel
		select {
		case <-s.ended:
			return
		case <-t.C:
		}
	}
}

// save takes a checkpoint of every partition, with all that was answered before, and writes them as a snapshot.
func (n *Node) save(ctx context.Context, r *carillon.SnapshotRequest, one *save) (saved *archive.Saved, where string, err error) {
	target, release, err := n.archive(ctx, r)
	if err != nil {
		return nil, "", err
	}
	defer release()
	n.saveLock.RLock()
	defer n.saveLock.RUnlock()
	here := n.followed()
	if err := n.readBarrier(here...); err != nil { // another node may have answered what this one has not read yet
		return nil, "", err
	}
	if err := n.checkpointForSave(ctx); err != nil {
		return nil, "", err
	}
	collector := partCollector{n: n, here: here}
	defer collector.end(ctx)
	o := saveOptions(len(n.partitions), n.o.Prefix)
	o.FindPart = collector.find
	o.Share, o.Recheck = saveShare, r.Recheck
	writing, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	o.Progress = func(p archive.Progress) {
		if err := n.noRoomToSave(r); err != nil {
			giveUp(err)
		}
		one.mu.Lock()
		defer one.mu.Unlock()
		one.progress = carillon.SnapshotReply{Phase: carillon.SnapshotWrite, Done: p.Done, Total: p.Total, Rows: p.Pairs, Blocks: p.Blocks}
	}
	began := time.Now()
	saved, err = archive.Save(writing, n.jobTable, target, o)
	if cause := context.Cause(writing); err != nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	if err != nil {
		return nil, "", err
	}
	n.log.Info("saved a snapshot", "id", saved.Manifest.ID, "archive", target.String(), "blocks", saved.Written, "bytes", saved.Bytes, "took", time.Since(began))
	return saved, target.String(), nil
}

// noRoomToSave returns an error if a save goes to the disk of the data directory, and that has too little room for new jobs: the save
// would take the room that firing needs.
func (n *Node) noRoomToSave(r *carillon.SnapshotRequest) error {
	if !n.refuseJobs.Load() {
		return nil
	}
	here := n.server != nil // the embedded server's buckets are in the data directory
	if r.Dir != "" {
		var err error
		if here, err = streams.SameDisk(r.Dir, n.o.Data); err != nil {
			return err
		}
	}
	if !here {
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("less than %d MiB are free on the disk of the data directory: no snapshot is saved there", n.o.FreeForJobs>>20)}
}

// checkpointForSave takes a checkpoint of every partition that this node follows, so that the snapshot has every command that was
// answered.
func (n *Node) checkpointForSave(ctx context.Context) error {
	if n.holdTicks.Load() {
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("less than %d MiB of disk are free: no checkpoint is taken", n.o.FreeForTicks>>20)}
	}
	if err := n.checkpointAll(ctx); err != nil {
		n.fail(markTransient(err)) // as after a regular checkpoint that fails
		return err
	}
	if stopped := n.stoppedHere(); stopped > 0 {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("%d partitions have stopped; carillon status says why", stopped)}
	}
	return ctx.Err()
}

// saveOptions are the options of every save of a service, with or without a running node.
func saveOptions(partitions int, prefix string) archive.SaveOptions {
	return archive.SaveOptions{
		Partitions: partitions, Prefix: prefix,
		Versions: archive.Versions{Carillon: Version(), Logic: engine.Logic, TZData: schedule.TZVersion()},
		Time: func(_ uint16, state []byte) (time.Time, error) {
			s, err := engine.ReadState(state)
			if err != nil || s.To == 0 {
				return time.Time{}, err
			}
			return time.UnixMilli(s.To), nil
		},
	}
}
