package archive

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// startBucket runs a nats-server and makes a bucket.
func startBucket(t *testing.T, o ...nats.Option) *Bucket {
	t.Helper()
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL(), o...)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := JetStream(nc, 0)
	must(t, err)
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "snapshots"})
	must(t, err)
	return NewBucket("snapshots", js, store)
}

// standstill is a link on which nothing arrives for a while, once.
type standstill struct {
	net.Conn
	next *atomic.Bool
}

func (s standstill) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return standstill{c, s.next}, err
}

func (s standstill) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.next.CompareAndSwap(true, false) {
		time.Sleep(6 * time.Second) // more than JetStream's own timeout
	}
	return n, err
}

// An object on a slow link may take longer than an answer of JetStream.
func TestBucketOnSlowLink(t *testing.T) {
	t.Parallel()
	var still atomic.Bool
	b := startBucket(t, nats.SetCustomDialer(standstill{next: &still}))
	data := make([]byte, 1<<20)
	must(t, b.Put(t.Context(), "blocks/x", data))
	still.Store(true)
	got, err := b.Get(t.Context(), "blocks/x", math.MaxInt64)
	must(t, err)
	if !bytes.Equal(got, data) {
		t.Error("it is another object")
	}
}

// An object whose bytes are gone or changed counts as damaged, and does not end a verification.
func TestBucketWithoutBytes(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), startBucket(t)
	js, err := jetstream.New(b.js.Conn(), jetstream.WithDefaultTimeout(time.Second)) // short, because reading the object waits for it in vain
	must(t, err)
	store, err := js.ObjectStore(ctx, b.name)
	must(t, err)
	b = NewBucket(b.name, js, store)
	fixture(t, vfs.NewMem(), b, 60)
	blocks, err := b.List(ctx, blocksFolder)
	must(t, err)
	k, err := b.last(ctx, blocks[0].Name)
	must(t, err)
	s, err := js.Stream(ctx, b.stream())
	must(t, err)
	must(t, s.Purge(ctx, jetstream.WithPurgeSubject(b.chunks(k.info.NUID))))
	k, err = b.last(ctx, blocks[1].Name)
	must(t, err)
	_, err = js.Publish(ctx, b.chunks(k.info.NUID), []byte("more"))
	must(t, err)

	v, err := Verify(ctx, b, nil, nil)
	must(t, err)
	if len(v.Problems) != 2 || v.Blocks != len(blocks) {
		t.Fatalf("of %d blocks %d were read: %v", len(blocks), v.Blocks, v.Problems)
	}
	for i, p := range v.Problems {
		if where, ok := errors.AsType[*Damage](p.Err); !ok || where.File != b.Path(blocks[i].Name) {
			t.Error(p.Err)
		}
	}
	must(t, b.Put(ctx, "blocks/large", []byte("large")))
	if _, err := b.Get(ctx, "blocks/large", 4); !errors.Is(err, wal.ErrCorrupt) {
		t.Errorf("an object that is larger than it may be: %v", err)
	}
	if _, err := b.Get(ctx, "blocks/none", math.MaxInt64); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// When a bucket is full, an object's bytes may be refused while its metadata, which are small and come behind them, are stored. No later save
// relies on such an object.
func TestFullBucket(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), startBucket(t)
	js, err := jetstream.New(b.js.Conn(), jetstream.WithDefaultTimeout(time.Second)) // short, because reading such an object waits for it in vain
	must(t, err)
	store, err := js.ObjectStore(ctx, b.name)
	must(t, err)
	b = NewBucket(b.name, js, store)
	s, err := js.Stream(ctx, b.stream())
	must(t, err)
	bound := func(bytes int64) {
		t.Helper()
		c := s.CachedInfo().Config
		c.MaxBytes = bytes
		_, err := js.UpdateStream(ctx, c)
		must(t, err)
	}
	mem := vfs.NewMem()
	fixture(t, mem, OpenDir(mem, "other"), 60)
	source, table, err := openTable(mem, "db")
	must(t, err)
	defer func() { must(t, source.Close()) }()
	save := func() error {
		_, err := Save(ctx, table, b, SaveOptions{Partitions: 2, sizes: smallSizes})
		return err
	}
	for bytes := int64(8000); ; bytes += 100 { // at some of these there is room for the metadata alone
		bound(bytes)
		if err := save(); err == nil {
			break
		}
		if v, err := clean(b); err != nil || v.Snapshots > 0 {
			t.Fatalf("%d bytes: %+v, %v", bytes, v, err)
		}
	}
	if v, err := clean(b); err != nil || v.Snapshots != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	// An engine that is killed right then leaves such an object.
	bound(-1)
	blocks, err := b.List(ctx, blocksFolder)
	must(t, err)
	k, err := b.last(ctx, blocks[0].Name)
	must(t, err)
	must(t, s.Purge(ctx, jetstream.WithPurgeSubject(b.chunks(k.info.NUID))))
	must(t, save())
	if v, err := clean(b); err != nil || v.Snapshots != 2 {
		t.Errorf("a block without bytes, and saved again: %+v, %v", v, err)
	}
}

// A folder of a bucket is emptied whoever holds its lock, and nothing else is.
func TestEmptyFolder(t *testing.T) {
	ctx := t.Context()
	bucket := startBucket(t)
	for _, b := range []*Bucket{bucket, bucket.In("a"), bucket.In("b")} {
		lock, err := b.Lock(ctx)
		must(t, err)
		t.Cleanup(func() { must(t, lock.Release(ctx)) })
		must(t, b.Put(ctx, "blocks/x", []byte(b.String())))
	}
	must(t, bucket.In("a").Empty(ctx))
	if left, err := bucket.In("a").list(ctx, ""); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	must(t, bucket.In("none").Empty(ctx))
	for _, b := range []*Bucket{bucket, bucket.In("b")} {
		if data, err := b.Get(ctx, "blocks/x", math.MaxInt64); err != nil || string(data) != b.String() {
			t.Errorf("%s: %q, %v", b, data, err)
		}
	}
}

// A bucket does the same as a directory; both are real.
func TestTargets(t *testing.T) {
	targets := map[string]func(t *testing.T) Target{
		"directory": func(t *testing.T) Target { return OpenDir(nil, t.TempDir()+"/archive") },
		"bucket":    func(t *testing.T) Target { return startBucket(t) },
		"folder of a bucket": func(t *testing.T) Target {
			bucket := startBucket(t)
			lock, err := bucket.Lock(t.Context()) // does not concern the folder
			must(t, err)
			t.Cleanup(func() { must(t, lock.Release(t.Context())) })
			return bucket.In("folder")
		},
	}
	for name, open := range targets {
		t.Run(name, func(t *testing.T) { testTarget(t, open(t)) })
	}
}

func testTarget(t *testing.T, target Target) {
	ctx := t.Context()
	list, err := List(ctx, target)
	must(t, err)
	if len(list) != 0 {
		t.Fatalf("%v in an empty archive", list)
	}
	_, err = Get(ctx, target, "")
	wantErr(t, err, ErrNotFound)
	_, err = Prune(ctx, target, PruneOptions{Drop: []string{"nothing"}})
	wantErr(t, err, ErrNotFound)

	mem := vfs.NewMem()
	all := fixture(t, mem, target, 60)
	store, table, err := openTable(mem, "db")
	must(t, err)
	second, err := Save(ctx, table, target, SaveOptions{Partitions: 2, Prefix: "acme", Now: time.UnixMilli(1_800_000_001_000), sizes: smallSizes})
	must(t, err)
	must(t, store.Close())
	if second.Written != 0 || second.Reused == 0 {
		t.Fatalf("%+v", second)
	}
	v, err := clean(target)
	must(t, err)
	if v.Snapshots != 2 || v.Blocks != second.Reused || v.Unused != 0 {
		t.Fatalf("%+v", v)
	}
	var progress Progress
	_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem, Progress: func(p Progress) { progress = p }})
	must(t, err)
	if progress.Done != progress.Total || progress.Done != second.Manifest.Totals().Raw {
		t.Errorf("progress %+v", progress)
	}
	got, err := restored(mem, "new", 2)
	must(t, err)
	if d := cmp.Diff(all, got); d != "" {
		t.Fatal(d)
	}

	// A manifest that cannot be read stops a prune that would leave it; Drop takes it.
	list, err = List(ctx, target)
	must(t, err)
	spoilManifest(t, target, list[1].ID)
	_, err = Prune(ctx, target, PruneOptions{Keep: 1})
	wantErr(t, err, wal.ErrCorrupt)
	if _, err = Prune(ctx, target, PruneOptions{Drop: []string{list[1].ID}, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	again, err := List(ctx, target)
	must(t, err)
	if len(again) != 2 {
		t.Fatalf("a dry run left %v", again)
	}
	pruned, err := Prune(ctx, target, PruneOptions{Drop: []string{list[1].ID}})
	must(t, err)
	if !slices.Equal(pruned.Dropped, []string{list[1].ID}) || pruned.Blocks != 0 {
		t.Fatalf("%+v", pruned)
	}
	pruned, err = Prune(ctx, target, PruneOptions{Drop: []string{list[0].ID}})
	must(t, err)
	if pruned.Blocks != second.Reused {
		t.Fatalf("%+v", pruned)
	}
	left, err := target.List(ctx, blocksFolder)
	must(t, err)
	if len(left) != 0 {
		t.Fatalf("%v are left", left)
	}
}

// spoilManifest flips a bit of a snapshot's manifest.
func spoilManifest(t *testing.T, target Target, id string) {
	t.Helper()
	file, err := target.Get(t.Context(), manifestName(id), math.MaxInt64)
	must(t, err)
	file[len(file)/2] ^= 4
	must(t, target.Put(t.Context(), manifestName(id), file))
}

// shared makes an archive of the fixture's snapshot, which is acme's, and one more for each prefix, in order of time.
func shared(t *testing.T, prefixes ...string) (target *Dir, saved []string) {
	t.Helper()
	mem := vfs.NewMem()
	target = OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	store, table, err := openTable(mem, "db")
	must(t, err)
	for i, prefix := range prefixes {
		s, err := Save(t.Context(), table, target, SaveOptions{Partitions: 2, Prefix: prefix, Now: time.UnixMilli(1_800_000_001_000 + int64(i)), sizes: smallSizes})
		must(t, err)
		saved = append(saved, s.Manifest.ID)
	}
	must(t, store.Close())
	return target, saved
}

// Keep counts only snapshots that Drop does not name: dropping a damaged one does not cost a whole one.
func TestKeepsAsManyAsAreNotDropped(t *testing.T) {
	ctx := t.Context()
	target, _ := shared(t, "acme", "acme", "acme")
	list, err := List(ctx, target)
	must(t, err)
	spoilManifest(t, target, list[0].ID)
	pruned, err := Prune(ctx, target, PruneOptions{Keep: 1, Drop: []string{list[0].ID}})
	must(t, err)
	if !slices.Equal(pruned.Kept, []string{list[1].ID}) || len(pruned.Dropped) != 3 {
		t.Errorf("%+v, want the newest that is whole, %s, kept", pruned, list[1].ID)
	}
	if v, err := clean(target); err != nil || v.Snapshots != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// Older snapshots are dropped, unless they are among those to keep.
func TestDropsWhatIsOlder(t *testing.T) {
	target, saved := shared(t, "acme", "acme", "acme")
	slices.Reverse(saved)
	now := time.UnixMilli(1_800_000_001_001).Add(time.Hour) // an hour after the second snapshot
	for keep, kept := range []int{2, 2, 2, 3} {
		pruned, err := Prune(t.Context(), target, PruneOptions{Keep: keep, OlderThan: time.Hour, Now: now, DryRun: true})
		must(t, err)
		if !slices.Equal(pruned.Kept, saved[:kept]) || len(pruned.Dropped) != 4-kept {
			t.Errorf("keep %d and what is not older than an hour: %+v, want %q kept", keep, pruned, saved[:kept])
		}
	}
	for _, o := range []PruneOptions{{Keep: -1}, {Keep: 1, OlderThan: -1}} {
		if pruned, err := Prune(t.Context(), target, o); err == nil {
			t.Errorf("%+v drops %q", o, pruned.Dropped)
		}
	}
}

// In an archive that two services share, each service keeps its own snapshots.
func TestKeepsOfEachService(t *testing.T) {
	target, saved := shared(t, "acme", "carillon", "carillon", "carillon")
	pruned, err := Prune(t.Context(), target, PruneOptions{Keep: 1})
	must(t, err)
	if !slices.Contains(pruned.Kept, saved[0]) || !slices.Contains(pruned.Kept, saved[3]) || slices.Contains(pruned.Kept, saved[2]) {
		t.Errorf("%+v, want the newest of acme, %s, and of carillon, %s", pruned, saved[0], saved[3])
	}
}

// Saves and prunes keep each other out, on both kinds of target.
func TestLocks(t *testing.T) {
	ctx := t.Context()
	bucket := startBucket(t)
	bucket.renewInterval, bucket.lockPatience = time.Millisecond, 0 // a lock that is renewed all the time looks like that of a later caller
	for name, target := range map[string]Target{"directory": OpenDir(nil, t.TempDir()+"/a"), "memory": OpenDir(vfs.NewMem(), "a"), "bucket": bucket} {
		lock, err := target.Lock(ctx)
		must(t, err)
		must(t, lock.Check(ctx))
		_, err = target.Lock(ctx)
		wantErr(t, err, ErrLocked)
		_, err = Prune(ctx, target, PruneOptions{})
		wantErr(t, err, ErrLocked)
		must(t, lock.Check(ctx))
		must(t, lock.Release(ctx))
		lock, err = target.Lock(ctx)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		must(t, lock.Release(ctx))
	}
	left, err := bucket.List(ctx, locksFolder)
	must(t, err)
	if len(left) > 0 {
		t.Fatalf("%v are left", left)
	}
}

// Of two who see each other's locks, because they come at the same time, one gives up and the other one does not.
func TestBucketLockOfTwo(t *testing.T) {
	ctx := t.Context()
	bucket := startBucket(t)
	bucket.lockPatience = time.Hour
	first := &bucketLock{bucket: bucket, name: locksFolder + "/second-by-name"}
	second := &bucketLock{bucket: bucket, name: locksFolder + "/first-by-name"}
	for _, l := range []*bucketLock{first, second} {
		must(t, bucket.Put(ctx, l.name, []byte(l.name)))
	}
	if younger, err := first.look(ctx); !younger {
		t.Errorf("the lock that was put later is older, or not seen: %v", err)
	}
	took := make(chan error, 1)
	go func() { took <- first.takeOver(ctx) }()
	wantErr(t, second.takeOver(ctx), ErrLocked)
	must(t, second.remove(ctx))
	must(t, <-took)
	must(t, first.remove(ctx))
}

// A lock in a bucket is renewed. One that is not renewed is taken over, and its holder finds out.
func TestBucketLockIsTakenOver(t *testing.T) {
	ctx := t.Context()
	bucket := startBucket(t)
	bucket.renewInterval = time.Millisecond
	lock, err := bucket.Lock(ctx)
	must(t, err)
	first, err := bucket.List(ctx, locksFolder)
	must(t, err)
	for renewed := false; !renewed; {
		now, err := bucket.List(ctx, locksFolder)
		must(t, err)
		renewed = now[0].Time.After(first[0].Time)
	}
	must(t, lock.Release(ctx))

	bucket.renewInterval = time.Hour // as good as suspended
	lock, err = bucket.Lock(ctx)
	must(t, err)
	other := NewBucket("snapshots", bucket.js, bucket.store)
	other.lockTTL = 0
	second, err := other.Lock(ctx)
	must(t, err)
	wantErr(t, lock.Check(ctx), ErrLocked)
	must(t, second.Check(ctx))
	must(t, lock.Release(ctx))
	must(t, second.Release(ctx))
}

// A renewal that the server stores after another has taken over and gone does not give the lock back: that one may have removed blocks on
// which the save relies.
func TestLateRenewal(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	bucket := startBucket(t)
	bucket.renewInterval = time.Hour
	fixture(t, mem, bucket, 60)
	list, err := List(ctx, bucket)
	must(t, err)
	must(t, bucket.Delete(ctx, manifestName(list[0].ID))) // as a prune that was interrupted leaves it: blocks without a snapshot
	store, table, err := openTable(mem, "db")
	must(t, err)
	defer func() { must(t, store.Close()) }()
	bucket.lockTTL = time.Nanosecond // the minute is over
	other := NewBucket("snapshots", bucket.js, bucket.store)
	other.lockTTL = bucket.lockTTL
	renewed := false
	_, err = Save(ctx, table, bucket, SaveOptions{Partitions: 2, sizes: smallSizes, Progress: func(p Progress) {
		if p.Blocks < 3 || renewed {
			return
		}
		renewed = true
		locks, err := bucket.List(ctx, locksFolder)
		must(t, err)
		pruned, err := Prune(ctx, other, PruneOptions{})
		must(t, err)
		if len(locks) != 1 || pruned.Blocks == 0 {
			t.Errorf("%d locks; pruned %+v", len(locks), pruned)
		}
		must(t, bucket.Put(ctx, locks[0].Name, []byte(locks[0].Name)))
	}})
	wantErr(t, err, ErrLocked)
	if v, err := clean(bucket); err != nil || v.Snapshots != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if left, err := bucket.List(ctx, locksFolder); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// A holder that finds its lock renewed too late has lost it for good, although it is renewed again. In time is also a renewal for which the
// server's clock went back a little.
func TestGapInRenewals(t *testing.T) {
	ctx := t.Context()
	bucket := startBucket(t)
	at := func(d time.Duration) time.Time { return time.Unix(1_800_000_000, 0).Add(d) }
	l := &bucketLock{bucket: bucket, name: locksFolder + "/l"}
	for _, stored := range []time.Duration{0, 0, lockTTL - 1, 50 * time.Second, 100 * time.Second} {
		must(t, l.see(at(stored)))
	}
	for _, stored := range []time.Duration{100*time.Second + lockTTL, 170 * time.Second, 100*time.Second - lockTTL} {
		wantErr(t, l.see(at(stored)), ErrLocked)
	}
	must(t, bucket.Put(ctx, l.name, nil))
	l.seen = time.Now().Add(-2 * lockTTL)
	for range 2 {
		wantErr(t, l.Check(ctx), ErrLocked)
		must(t, bucket.Put(ctx, l.name, nil))
	}
}

// lostLock is a target whose lock is taken over by another after so many checks.
type lostLock struct {
	Target
	looks int
}

func (l lostLock) Lock(ctx context.Context) (Lock, error) {
	lock, err := l.Target.Lock(ctx)
	return &takenLock{lock, l.looks}, err
}

type takenLock struct {
	Lock
	looks int
}

func (l *takenLock) Check(context.Context) error {
	if l.looks--; l.looks < 0 {
		return ErrLocked
	}
	return nil
}

// After the loss of its lock a save writes no snapshot, because blocks may be gone, and a prune removes nothing, because it may be
// another's.
func TestLockIsLost(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	list, err := List(ctx, target)
	must(t, err)
	store, table, err := openTable(mem, "db")
	must(t, err)
	defer func() { must(t, store.Close()) }()
	_, err = Save(ctx, table, lostLock{target, 0}, SaveOptions{Partitions: 2, sizes: smallSizes})
	wantErr(t, err, ErrLocked)
	_, err = Prune(ctx, lostLock{target, 0}, PruneOptions{Drop: []string{list[0].ID}})
	wantErr(t, err, ErrLocked)
	before, err := clean(target)
	if err != nil || before.Snapshots != 1 {
		t.Errorf("%+v, %v", before, err)
	}
	_, err = Prune(ctx, lostLock{target, 2}, PruneOptions{Drop: []string{list[0].ID}})
	wantErr(t, err, ErrLocked)
	if after, err := clean(target); err != nil || after.Unused != before.Blocks-1 {
		t.Errorf("after one of %d blocks the lock was lost: %+v, %v", before.Blocks, after, err)
	}
}

// If somebody moves or empties the directory during a save, no snapshot is saved: its blocks are not all in one place.
func TestDirectoryIsMovedAtSave(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	store, table, err := openTable(mem, "db")
	must(t, err)
	defer func() { must(t, store.Close()) }()
	for what, move := range map[string]func() error{
		"moved":   func() error { return mem.Rename("archive", "moved") },
		"emptied": func() error { return mem.RemoveAll("archive") },
	} {
		_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, sizes: smallSizes, Progress: func(p Progress) {
			if p.Blocks == 3 {
				must(t, move())
			}
		}})
		if !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", what, err)
		}
		_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, sizes: smallSizes})
		must(t, err)
		if v, err := clean(target); err != nil || v.Snapshots != 1 {
			t.Errorf("%s, and saved again: %+v, %v", what, v, err)
		}
	}
}

// A save that is given up while NATS is away, as by an engine that stops, does not wait for NATS until the lock has ended by itself.
func TestBucketLockIsLeft(t *testing.T) {
	ctx, giveUp := context.WithCancel(t.Context())
	away := &outage{}
	bucket := startBucket(t, nats.SetCustomDialer(away))
	bucket.renewInterval = time.Millisecond
	lock, err := bucket.Lock(ctx)
	must(t, err)
	away.Store(true)
	must(t, bucket.js.Conn().ForceReconnect())
	released := make(chan error, 1)
	go func() { released <- lock.Release(ctx) }()
	giveUp()
	select {
	case err := <-released:
		wantErr(t, err, context.Canceled)
	case <-time.After(lockTTL / 2):
		t.Fatal("it is waited for")
	}
}

// outage is a network over which nobody can be reached while it is true.
type outage struct{ atomic.Bool }

func (o *outage) Dial(network, address string) (net.Conn, error) {
	if o.Load() {
		return nil, errors.New("outage")
	}
	return net.Dial(network, address)
}

// A lock whose process was killed while the server's clock was ahead does not keep others out until the clock is there again.
func TestBucketLockFromAhead(t *testing.T) {
	bucket := startBucket(t)
	bucket.lockTTL = time.Nanosecond
	own := &bucketLock{bucket: bucket, name: locksFolder + "/own"}
	must(t, bucket.Put(t.Context(), own.name, nil))
	must(t, bucket.Put(t.Context(), locksFolder+"/ahead", nil))
	must(t, own.takeOver(t.Context()))
}

// A bucket that is saved to and pruned again and again does not grow where nothing changes.
func TestBucketDoesNotGrow(t *testing.T) {
	target := startBucket(t)
	mem := vfs.NewMem()
	fixture(t, mem, target, 60)
	store, table, err := openTable(mem, "db")
	must(t, err)
	defer store.Close()
	var first uint64
	for round := range 10 {
		_, err = Save(t.Context(), table, target, SaveOptions{Partitions: 2, sizes: smallSizes})
		must(t, err)
		_, err = Prune(t.Context(), target, PruneOptions{Keep: 1})
		must(t, err)
		s, err := target.js.Stream(t.Context(), "OBJ_snapshots")
		must(t, err)
		if n := s.CachedInfo().State.Msgs; round == 0 {
			first = n
		} else if n != first {
			t.Fatalf("there are %d messages after round %d, and were %d after the first", n, round, first)
		}
	}
}

// An object that is put again while it is being deleted stays.
func TestBucketKeepsWhatIsPutAgain(t *testing.T) {
	ctx, b := t.Context(), startBucket(t)
	must(t, b.Put(ctx, "blocks/x", []byte("one")))
	one, err := b.last(ctx, "blocks/x")
	must(t, err)
	must(t, b.Put(ctx, "blocks/x", []byte("two")))
	must(t, b.purge(ctx, "blocks/x", one))
	if data, err := b.Get(ctx, "blocks/x", math.MaxInt64); string(data) != "two" || err != nil {
		t.Errorf("it holds %q, %v", data, err)
	}
	must(t, b.Put(ctx, "blocks/y", nil))
	must(t, b.store.Delete(ctx, "blocks/y")) // JetStream's own delete
	if list, err := b.List(ctx, blocksFolder); err != nil || len(list) != 1 || list[0].Name != "blocks/x" {
		t.Errorf("there is %v, %v", list, err)
	}
	must(t, b.Delete(ctx, "blocks/y"))
	must(t, b.Delete(ctx, "blocks/x"))
	_, err = b.Get(ctx, "blocks/x", math.MaxInt64)
	wantErr(t, err, ErrNotFound)
	s, err := b.js.Stream(ctx, b.stream())
	must(t, err)
	if n := s.CachedInfo().State.Msgs; n > 0 {
		t.Errorf("%d messages are left", n)
	}
}

// behindWith has a bucket's direct gets answered as by a replica that does not have an object yet.
func behindWith(t *testing.T, b *Bucket, name string) {
	t.Helper()
	ctx := t.Context()
	s, err := b.js.Stream(ctx, b.stream())
	must(t, err)
	config := s.CachedInfo().Config
	config.AllowDirect = false // so the server does not answer direct gets; clients that are open already still send them
	s, err = b.js.UpdateStream(ctx, config)
	must(t, err)
	direct := "$JS.API.DIRECT.GET." + b.stream() + "."
	_, err = b.js.Conn().Subscribe(direct+">", func(m *nats.Msg) {
		subject := strings.TrimPrefix(m.Subject, direct)
		reply := nats.NewMsg(m.Reply)
		found, err := s.GetLastMsgForSubject(ctx, subject)
		if err != nil || subject == b.subjectOf(name) {
			reply.Header.Set("Status", "404")
		} else {
			reply.Data = found.Data
			reply.Header.Set(jetstream.StreamHeader, b.stream())
			reply.Header.Set(jetstream.SubjectHeader, subject)
			reply.Header.Set(jetstream.SequenceHeader, strconv.FormatUint(found.Sequence, 10))
			reply.Header.Set(jetstream.TimeStampHeaer, found.Time.Format(time.RFC3339Nano))
		}
		_ = b.js.Conn().PublishMsg(reply)
	})
	must(t, err)
}

// In a bucket of several replicas one that is behind answers direct gets, too. A snapshot that it does not have yet does not count as
// deleted: its blocks stay.
func TestBucketReplicaBehind(t *testing.T) {
	ctx, b := t.Context(), startBucket(t)
	mem := vfs.NewMem()
	fixture(t, mem, b, 60)
	list, err := List(ctx, b)
	must(t, err)
	name := manifestName(list[0].ID)
	behindWith(t, b, name)

	if objects, err := b.List(ctx, snapshotsFolder); err != nil || len(objects) != 1 {
		t.Errorf("listed: %v, %v", objects, err)
	}
	if _, err := List(ctx, b); err == nil {
		t.Error("a snapshot that is there is not listed, without an error")
	}
	if _, err := Prune(ctx, b, PruneOptions{}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a prune that cannot read a snapshot: %v", err)
	}
	for block := range list[0].Manifest.blocks() {
		if _, err := b.Get(ctx, block.Name(), math.MaxInt64); err != nil {
			t.Error(err)
		}
	}
	must(t, b.Delete(ctx, name))
	if objects, err := b.List(ctx, snapshotsFolder); err != nil || len(objects) != 0 {
		t.Errorf("listed after it was deleted: %v, %v", objects, err)
	}
}

// listsOnly is an archive with an object that is listed, but not there when it is read.
type listsOnly struct {
	Target
	name string
}

func (l listsOnly) Get(ctx context.Context, name string, most int64) ([]byte, error) {
	if name == l.name {
		return nil, ErrNotFound
	}
	return l.Target.Get(ctx, name, most)
}

// A snapshot that is gone when List reads it was pruned, and List leaves it out. A prune holds the lock, so it knows that none was
// pruned, and removes nothing.
func TestListedAndGone(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	list, err := List(ctx, target)
	must(t, err)
	gone := listsOnly{target, manifestName(list[0].ID)}
	if list, err := List(ctx, gone); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	_, err = Prune(ctx, gone, PruneOptions{})
	wantErr(t, err, ErrNotFound)
	_, err = clean(target)
	must(t, err)
}

// A lock that one replica does not have yet is not lost.
func TestBucketLockReplicaBehind(t *testing.T) {
	ctx, b := t.Context(), startBucket(t)
	lock, err := b.Lock(ctx)
	must(t, err)
	behindWith(t, b, lock.(*bucketLock).name)
	must(t, lock.Check(ctx))
	_, err = b.Lock(ctx)
	wantErr(t, err, ErrLocked)
	must(t, lock.Release(ctx))
	if locks, err := b.List(ctx, locksFolder); err != nil || len(locks) != 0 {
		t.Errorf("locks are left: %v, %v", locks, err)
	}
}

func TestSaveRefuses(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	store, table, err := openTable(mem, "db")
	must(t, err)
	defer func() { must(t, store.Close()) }()
	_, err = Save(ctx, table, target, SaveOptions{Partitions: 1})
	wantErr(t, err, snapshot.ErrNoCheckpoint)
	for _, o := range []SaveOptions{{}, {Partitions: 1 << 17}, {Partitions: 1, Share: 2}, {Partitions: 1, Share: -1}} {
		if _, err := Save(ctx, table, target, o); err == nil || errors.Is(err, snapshot.ErrNoCheckpoint) { // it would be that without checks
			t.Errorf("%+v is accepted: %v", o, err)
		}
	}
	fill, err := table.BulkLoad(0)
	must(t, err)
	must(t, fill.Set(' ', nil, nil))
	_, err = fill.Commit(1, nil)
	must(t, err)
	if _, err = Save(ctx, table, target, SaveOptions{Partitions: 1}); err == nil {
		t.Error("a room without a name is accepted")
	}
	list, err := List(ctx, target)
	must(t, err)
	if len(list) != 0 {
		t.Errorf("%v", list)
	}
}

// The pace rests in proportion to the work.
func TestPace(t *testing.T) {
	start := time.Now()
	p := &pace{share: 0.25, resumed: start}
	if got := p.rest(start.Add(4 * time.Millisecond)); got != 12*time.Millisecond {
		t.Errorf("after 4 ms of work at a quarter: %v", got)
	}
	if got := p.rest(start.Add(burst / 2)); got != 0 {
		t.Errorf("in a burst: %v", got)
	}
	p = newPace(0.5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, p.step(ctx, 1<<20), context.Canceled)
}
