package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
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

// saveShare is the part of one core that a save takes beside firing, and who fills a partition with what another node saved.
const saveShare = 0.5

// saveWord is how often a save that is under way says so.
const saveWord = 250 * time.Millisecond

// saving is what a node saves, one at a time.
type saving struct {
	mu      sync.Mutex
	ctx     context.Context // of the run; nil: none is taken
	current *save
}

// save is one of them.
type save struct {
	id     string // the client's name for it; may be ""
	cancel context.CancelFunc
	ended  chan struct{}
	saved  bool // there is a snapshot; known once it has ended

	mu       sync.Mutex
	progress carillon.SnapshotReply
}

// open lets saves begin, until ctx ends.
func (s *saving) open(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
}

// close gives up the save that is under way, and lets none begin.
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

// cancel gives a save up and waits until it has ended. One that was saved before it could be given up is not under way any more.
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

// cancels is where nodes that share a NATS tell each other which save is to be given up.
func (n *Node) cancels() string { return n.o.Prefix + ".api.snapshot-cancel" }

// hearCancels gives up this node's save when another was asked to. Mostly there is no such save here; one that there is
// takes a while to end.
func (n *Node) hearCancels() error {
	_, err := n.nc.Subscribe(n.cancels(), func(m *nats.Msg) { go func() { _ = n.snapshots.cancel(string(m.Data)) }() })
	return err
}

// apiSnapshot saves a snapshot, and says how far it is until it has ended.
func (n *Node) apiSnapshot(c *call) error {
	r, err := carillon.ParseSnapshot(c.Data())
	if err != nil {
		return err
	}
	if r.Cancel != "" {
		if err := n.snapshots.cancel(r.Cancel); err != nil {
			// Another node may be the one that saves. Who asked has the error, and may ask again.
			_ = n.nc.Publish(n.cancels(), []byte(r.Cancel))
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
		one.say(c)
	}()
	saved, where, err := n.save(ctx, &r, one)
	given := ctx.Err() != nil
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
	case given:
		return c.answer((&carillon.SnapshotReply{Phase: carillon.SnapshotCancelled}).AppendJSON(nil))
	}
	n.log.Warn("no snapshot was saved", "error", err)
	return saveRefusal(err)
}

// saveRefusal gives an error its code.
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

// noPeers is JetStream's code (JSClusterNoPeersErrF) for a cluster of which too few servers are there to place a stream.
const noPeers = 10005

// mayBeBack tells of an error whether NATS, or as much of it as is needed, is only away for now.
func mayBeBack(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.Code == 503 || api.ErrorCode == noPeers
	}
	return errors.Is(unreachable(err), errUnreachable)
}

// say answers with the progress, until the save has ended.
func (s *save) say(c *call) {
	t := time.NewTicker(saveWord)
	defer t.Stop()
	for {
		s.mu.Lock()
		body := s.progress.AppendJSON(nil)
		s.mu.Unlock()
		_ = c.answer(body) // who does not hear it will ask again, or cancel
		select {
		case <-s.ended:
			return
		case <-t.C:
		}
	}
}

// save takes a checkpoint of every partition and writes it out.
func (n *Node) save(ctx context.Context, r *carillon.SnapshotRequest, one *save) (saved *archive.Saved, where string, err error) {
	target, release, err := n.archive(ctx, r)
	if err != nil {
		return nil, "", err
	}
	defer release()
	n.given.RLock()
	defer n.given.RUnlock()
	here := n.followed()
	if err := n.checkpointForSave(ctx); err != nil {
		return nil, "", err
	}
	gather := gathering{n: n, here: here}
	defer gather.end(ctx)
	o := saveOptions(len(n.partitions), n.o.Prefix)
	o.Elsewhere = gather.find
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
	saved, err = archive.Save(writing, n.saved, target, o)
	if cause := context.Cause(writing); err != nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	if err != nil {
		return nil, "", err
	}
	n.log.Info("saved a snapshot", "id", saved.Manifest.ID, "archive", target.String(), "blocks", saved.Written, "bytes", saved.Bytes, "took", time.Since(began))
	return saved, target.String(), nil
}

// noRoomToSave is an error while a save that goes to the disk of the data directory would take room that firing will need.
func (n *Node) noRoomToSave(r *carillon.SnapshotRequest) error {
	if !n.refuseJobs.Load() {
		return nil
	}
	here := n.server != nil // whose bucket is in the data directory
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

// checkpointForSave takes a checkpoint of every partition, so that all that was answered is in the snapshot.
func (n *Node) checkpointForSave(ctx context.Context) error {
	if n.holdTicks.Load() {
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("less than %d MiB of disk are free: no checkpoint is taken", n.o.FreeForTicks>>20)}
	}
	if err := n.checkpointAll(ctx); err != nil {
		n.fail(passing(err)) // as one that was due would
		return err
	}
	if stopped := n.stoppedHere(); stopped > 0 {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("%d partitions have stopped; carillon status says why", stopped)}
	}
	return ctx.Err()
}

// saveOptions say who saves what.
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

// archive opens what a request names.
func (n *Node) archive(ctx context.Context, r *carillon.SnapshotRequest) (t archive.Target, release func(), err error) {
	if r.Dir != "" {
		if err := n.checkArchiveDir(r.Dir); err != nil {
			return nil, nil, err
		}
		return archive.OpenDir(nil, filepath.Clean(r.Dir)), func() {}, nil
	}
	b, release, err := n.bucket(ctx, jetstream.ObjectStoreConfig{Bucket: r.Bucket})
	if err != nil {
		return nil, nil, err
	}
	if err := keepsObjects(ctx, b); err != nil {
		release()
		return nil, nil, err
	}
	return b, release, nil
}

// keepsObjects refuses a bucket that forgets what is in it: a snapshot uses blocks that older ones brought.
func keepsObjects(ctx context.Context, b *archive.Bucket) error {
	ttl, err := b.TTL(ctx)
	if err == nil && ttl > 0 {
		err = &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "bucket",
			Message: fmt.Sprintf("%s forgets objects after %s, and later snapshots are made of them, too: it needs one without", b, ttl),
		}
	}
	return err
}

// codeMaxBytesRequired is JetStream's word that the account has no stream without a bound of bytes. How large a bucket may become no engine
// can know, and what it may take is taken from the account at once.
const codeMaxBytesRequired = 10113

// bucket opens a bucket, and makes it where there is none. It has a connection of its own: what goes over the engine's is
// awaited by triggers.
func (n *Node) bucket(ctx context.Context, o jetstream.ObjectStoreConfig) (b *archive.Bucket, release func(), err error) {
	var nc *nats.Conn
	if n.server != nil {
		nc, err = n.server.Connect(nats.Name("carillon " + n.o.Name + " snapshot"))
	} else {
		nc, err = n.servers.Config.Connect(" snapshot")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("connect for the bucket: %w", err)
	}
	js, err := archive.JetStream(nc, 0)
	if err == nil {
		var store jetstream.ObjectStore
		store, err = js.ObjectStore(ctx, o.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			o.Replicas = n.streams.Log.Replicas()
			store, err = js.CreateObjectStore(ctx, o)
			if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == codeMaxBytesRequired {
				err = fmt.Errorf("%w (max_bytes_required); make the bucket before, as large as it may become: "+
					"nats object add %s --max-bucket-size SIZE --replicas %d", err, o.Bucket, o.Replicas)
				if o.TTL > 0 {
					err = fmt.Errorf("%w --ttl %s", err, o.TTL)
				}
			}
		}
		if err == nil {
			return archive.NewBucket(o.Bucket, js, store), nc.Close, nil
		}
	}
	nc.Close()
	return nil, nil, fmt.Errorf("bucket %s: %w", o.Bucket, err)
}

// checkArchiveDir refuses a directory that is somebody else's: any client may ask, and this process writes.
func (n *Node) checkArchiveDir(dir string) error {
	refuse := func(format string, args ...any) error {
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "dir", Message: fmt.Sprintf(format, args...)}
	}
	if !filepath.IsAbs(dir) {
		return refuse("is no absolute path here: %q", dir)
	}
	inside, err := liesIn(dir, n.o.Data)
	if err != nil {
		return err
	}
	if inside {
		return refuse("lies in the service's data directory")
	}
	if err := archive.OpenDir(nil, dir).Check(); err != nil {
		return refuse("%v", err)
	}
	return nil
}

// liesIn tells whether a path is a directory or lies in it, whatever symbolic links lead there.
func liesIn(path, dir string) (bool, error) {
	path, err := behindLinks(path)
	if err != nil {
		return false, err
	}
	if dir, err = behindLinks(dir); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)), nil
}

// behindLinks is the absolute path without symbolic links, of something that need not be there yet.
func behindLinks(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		real, err = behindLinks(parent)
		return filepath.Join(real, filepath.Base(path)), err
	}
	return real, err
}
