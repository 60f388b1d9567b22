package node_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/internal/smalldisk"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func diskOptions(dir string) node.Options {
	s := settings{Data: filepath.Join(dir, "data"), Partitions: partitions, CheckpointEvery: time.Second}
	o := s.options()
	o.LogMaxBytes, o.OutMaxBytes, o.LogStore.MemTableBytes = 32<<20, 16<<20, 4<<20
	return o
}

// A disk that fills up stops new jobs first, then firing, and everything goes on when there is room again.
func TestDiskFillsUp(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 256)
	if !ok {
		return
	}
	o := diskOptions(dir)
	o.FreeForJobs, o.FreeForTicks = 96<<20, 64<<20
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, beat)
	put(t, c, carillon.Job{ID: "late"})
	beats(t, c, 5)

	few := smalldisk.Fill(t, dir, 80<<20)
	notReady(t, r.HTTP, "no new jobs are taken")
	eventually(t, "the log tells that new jobs are refused", func() bool {
		return strings.Contains(r.log.String(), `msg="too little disk space for new jobs"`)
	})
	eventually(t, "every reader refuses new jobs", func() bool { return diskLow(t, nc) == partitions })
	rejected, err := nc.SubscribeSync("carillon.event.*.rejected.refused")
	if err != nil {
		t.Fatal(err)
	}
	limit := &carillon.Error{Code: carillon.CodeLimitExceeded}
	if _, err := c.Put(t.Context(), carillon.Job{ID: "refused"}); !errors.Is(err, limit) {
		t.Errorf("a put on a disk that is nearly full: %v", err)
	}
	raw := carillon.Command{Verb: carillon.VerbPut, Job: "refused", Body: []byte(`{"schedule":"@in 1ms"}`)}
	if _, err := c.Send(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	m, err := rejected.NextMsg(10 * time.Second)
	if err != nil {
		t.Fatalf("a raw put on a disk that is nearly full: %v", err)
	}
	if e, err := carillon.ParseEvent(m.Data); err != nil || e.Error == nil || e.Error.Code != carillon.CodeLimitExceeded {
		t.Errorf("a raw put on a disk that is nearly full: %+v, %v", e, err)
	}
	if r, err := c.Put(t.Context(), carillon.Job{ID: "late", Priority: carillon.High}); err != nil || r.Version != 2 {
		t.Errorf("a change of a job on a disk that is nearly full: %+v, %v", r, err)
	}
	beats(t, c, 5)

	none := smalldisk.Fill(t, dir, 32<<20)
	notReady(t, r.HTTP, "firing waits")
	if _, err := c.Send(t.Context(), carillon.Command{Verb: carillon.VerbFire, Job: "late"}); err != nil {
		t.Fatal(err)
	}
	at := func() time.Time { return status(t, c).Partitions[partitionOfBeat(t, c)].Now }
	overdue := func(ms float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("beats have been overdue for %v ms", ms), func() bool {
			return status(t, c).Partitions[partitionOfBeat(t, c)].TickLag >= ms
		})
	}
	for tries := 1; ; tries++ {
		overdue(500) // ten beats
		before := at()
		overdue(1000)
		after := at()
		if after.Equal(before) {
			break
		}
		if tries == 3 { // the first times ticks may have been on their way, on a disk that stood still
			t.Fatalf("time went on from %s to %s without ticks", before, after)
		}
	}

	none()
	few()
	ready(t, r)
	beats(t, c, 20)
	eventually(t, "every reader takes new jobs", func() bool { return diskLow(t, nc) == 0 })
	if _, err := c.Send(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was put when there was room again fires", func() bool {
		job, err := c.Get(t.Context(), "refused")
		return err == nil && job.Status == carillon.StatusCompleted
	})
	unbroken(t, nc, c)
	late := 0
	for _, o := range allOutputs(t, nc, partitions) {
		if o.trigger != nil && o.trigger.Job == "late" {
			late++
		}
	}
	if late != 1 {
		t.Errorf("what was asked for meanwhile fired %d times", late)
	}
	r.stop(t)
}

// diskLow counts the partitions whose latest record of the disk in the log says that new jobs are refused.
func diskLow(t testing.TB, nc *nats.Conn) (low int) {
	t.Helper()
	log, err := jetStream(t, nc).Stream(t.Context(), carillon.DefaultNames().LogStream())
	if err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		m, err := log.GetLastMsgForSubject(t.Context(), fmt.Sprintf("carillon.log.%d.disk", p))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		disk, err := engine.DecodeDisk(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if disk.Low {
			low++
		}
	}
	return low
}

// A disk is full to the last byte while jobs are put. Stores fail, and are started again in the process once
// there is room. What was accepted is there.
func TestDiskFull(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 256)
	if !ok {
		return
	}
	r := run(t, diskOptions(dir))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	put(t, c, beat)
	beats(t, c, 5)

	drop := smalldisk.Fill(t, dir, 13<<20)
	sliver := smalldisk.Fill(t, dir, 12<<20)
	c = carillon.Connect(nc, carillon.WithTimeout(time.Second))
	accepted := make(map[string]bool) // by job: whether its put was answered; one that was not may have been accepted, too
	payload := make([]byte, 100<<10)
	eventually(t, "the disk is full", func() bool {
		id := "job-" + time.Now().Format("150405.000000")[7:]
		_, err := c.Put(t.Context(), carillon.Job{ID: id, Schedule: "@every 1h", Payload: payload})
		if accepted[id] = err == nil; accepted[id] {
			return false
		}
		ok, _ := readyz(t, r.HTTP)
		return !ok
	})
	eventually(t, "a store fails", func() bool { return contains(r.log, "stopped firing, waiting for the disk") })
	sliver() // the node starts again on a disk that is nearly full
	eventually(t, "nats-server starts again", func() bool { return strings.Count(r.log.String(), "Server is ready") > 1 })
	drop()
	r.again(t)
	c = carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	there := 0
	for id, answered := range accepted {
		switch _, err := c.Get(t.Context(), id); {
		case err == nil:
			there++
		case answered || carillon.AsError(err).Code != carillon.CodeNotFound:
			t.Errorf("%s, accepted: %t: %v", id, answered, err)
		}
	}
	beats(t, c, 20)
	unbroken(t, nc, c)
	if t.Logf("%d jobs were accepted on the last bytes", there); there == 0 {
		t.Error("the disk was full from the start")
	}
	ready(t, r)
	r.stop(t)
}

// A disk is full for a moment while nothing is due. No tick finds out that the log accepts nothing any more, and the next one may
// be hours away. The next request is answered all the same.
func TestDiskFullAtRest(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 64)
	if !ok {
		return
	}
	o := diskOptions(dir)
	o.LogMaxBytes = 16 << 20 // room for another stream
	r := run(t, o)
	nc := dial(t, r.NATS)
	put(t, carillon.Connect(nc), carillon.Job{ID: "far", Schedule: "@yearly"})
	if _, err := jetStream(t, nc).CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}, MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	fail := func(subject string) {
		t.Helper()
		defer smalldisk.Fill(t, dir, 0)()
		if m, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: make([]byte, 100<<10)}, 100*time.Millisecond); err == nil {
			t.Fatalf("a full disk took it: %s", m.Data)
		}
	}
	fail("other")
	notReady(t, r.HTTP, "OTHER' write error: ") // and nothing else stops because of it
	put(t, carillon.Connect(nc), carillon.Job{ID: "near", Schedule: "@daily"})
	fail("carillon.cmd.put.far") // malformed, and stored like any other
	r.again(t)
	ready(t, r)
	put(t, carillon.Connect(nc, carillon.WithTimeout(20*time.Second)), carillon.Job{ID: "far", Schedule: "@daily"})
	r.stop(t)
}

// A disk is full at the very first write to the log, so that a sequence is used up while the log has never held anything. The next
// start succeeds all the same, and so does the one after it, before there is a checkpoint.
func TestDiskFullAtFirstWrite(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 64)
	if !ok {
		return
	}
	s := settings{Data: filepath.Join(dir, "data"), Partitions: partitions, LogMaxBytes: 16 << 20, OutMaxBytes: 8 << 20}
	small := streams.Config{Partitions: partitions, LogMaxBytes: s.LogMaxBytes, OutMaxBytes: s.OutMaxBytes}
	onStreams(t, s.Data, small, func(nc *nats.Conn, log *streams.Log) {
		drop := smalldisk.Fill(t, dir, 0)
		if m, err := nc.Request("carillon.log.0.claim", make([]byte, 100<<10), 100*time.Millisecond); err == nil {
			t.Fatalf("a full disk took it: %s", m.Data)
		}
		drop()
		if info, err := log.Info(t.Context()); err != nil || info.First != 2 || info.Last != 1 {
			t.Fatalf("the log holds %+v, %v", info, err)
		}
	})

	p := mustSpawn(t, s)
	put(t, client(t, p.NATS), carillon.Job{ID: "far", Schedule: "@yearly"})
	p.kill()
	p = mustSpawn(t, s)
	c := client(t, p.NATS)
	fires(t, c, "near")
	if _, err := c.Get(t.Context(), "far"); err != nil {
		t.Error(err)
	}
	p.terminate(t)
}

// A disk fills up while what the log stream lost is put back. The node starts again in the process once there is room, and puts back the
// rest. Nothing is lost.
func TestDiskFullAtHeal(t *testing.T) {
	t.Parallel()
	dir, ok := smalldisk.Mount(t, 192)
	if !ok {
		return
	}
	o := diskOptions(dir)
	o.HTTP, o.LogMaxBytes = natstest.FreeAddress(t), 128<<20
	o.CheckpointEvery, o.CheckpointBytes, o.CheckpointRecords = time.Hour, 1<<40, 1<<40 // so that all of it is needed
	o.FreeForTicks = 32 << 20
	r := run(t, o)
	put(t, client(t, r.NATS), beat)
	beats(t, client(t, r.NATS), 5)
	r.stop(t)
	older := t.TempDir()
	copyTree(t, filepath.Join(o.Data, "nats"), older)

	r = run(t, o)
	c := client(t, r.NATS)
	payload := make([]byte, 5<<10)
	_, _ = rand.Read(payload)
	far := func(yield func(carillon.Job) bool) {
		for i := 0; i < 5000 && yield(carillon.Job{ID: fmt.Sprint("far-", i), Schedule: "@yearly", Payload: payload, Form: carillon.PayloadBase64}); i++ {
		}
	}
	if err := c.PutAll(t.Context(), far, 64, func(_ carillon.Job, _ carillon.JobReply, err error) {
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	beats(t, c, 5)
	want := logRecords(t, dial(t, r.NATS))
	r.stop(t)
	replace(t, filepath.Join(o.Data, "nats"), older)

	drop := smalldisk.Fill(t, dir, 8<<20)
	r = launch(t, o)
	running := func() {
		t.Helper()
		select {
		case at := <-r.readies:
			t.Fatalf("it is ready: %+v", at)
		case <-r.done:
			t.Fatalf("the node ended: %v", r.err)
		default:
		}
	}
	eventually(t, "the disk is full", func() bool {
		running()
		return contains(r.log, "stopped firing, waiting for the disk", "heal the log stream", "CARILLON_LOG", "no space left on device")
	})
	if told := line(r.log, "stopped firing"); strings.Count(told, streams.ErrTimeout.Error()) != 1 {
		t.Errorf("it is told more than once: %s", told)
	}
	notReady(t, "http://"+o.HTTP, "no space left on device")
	starts := func() int { return len(lines(r.log, "the log stream lost its end; healing")) }
	time.Sleep(1500 * time.Millisecond) // nothing tells that it does not start; it looks whether to once a second
	if running(); starts() != 1 {
		t.Errorf("%d starts on a full disk", starts())
	}
	drop()
	r.again(t)
	ready(t, r)
	if starts() != 2 {
		t.Errorf("%d starts put something back", starts())
	}
	nc := dial(t, r.NATS)
	got := logRecords(t, nc)
	for seq, was := range want {
		if !reflect.DeepEqual(got[seq], was) {
			t.Fatalf("record %d of %d is %.200v, was %.200v", seq, len(want), got[seq], was)
		}
	}
	c = client(t, r.NATS)
	beats(t, c, 5)
	unbroken(t, nc, c)
	r.stop(t)
}

// logRecords returns what the log stream has, by sequence, with what was put back as it was.
func logRecords(t testing.TB, nc *nats.Conn) map[uint64]engine.Record {
	t.Helper()
	layout, all := engine.Layout{Prefix: "carillon", Partitions: partitions}, make(map[uint64]engine.Record)
	read(t, nc, carillon.DefaultNames().LogStream(), func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		r := engine.Record{Seq: meta.Sequence.Stream, Time: meta.Timestamp.UnixNano(), Subject: m.Subject(), Data: m.Data()}
		if was, ok := layout.Healed(&r); ok {
			r = was
		}
		r.Header = nil // a few are kept
		all[meta.Sequence.Stream] = r
	})
	return all
}

// fillable returns the file system of a disk to which nothing can be written while it is full.
func fillable() (fs vfs.FS, full *atomic.Bool) {
	full = new(atomic.Bool)
	return faultfs.Wrap(vfs.Default, func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	}), full
}

// A disk has no room for a checkpoint, but has for the log. The node starts again in the process once there is room,
// and nothing is missing.
func TestDiskFullAtCheckpoint(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = 50 * time.Millisecond
	disk, full := fillable()
	o.JobStore.FS = disk
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	twoCheckpoints(t, c, "a")
	full.Store(true)
	eventually(t, "a checkpoint fails", func() bool {
		return contains(r.log, "stopped firing, waiting for the disk", "no space left on device")
	})
	full.Store(false)
	r.again(t)
	ready(t, r)
	beats(t, c, 10)
	twoCheckpoints(t, c, "b")
	unbroken(t, nc, c)
	r.stop(t)
}

// A process that may open no more files cannot read its jobs, whatever they are needed for. It starts again in place, and no
// partition stops for good.
func TestTooManyOpenFiles(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery, o.HotJobs = time.Millisecond, 1 // so a start reads few of them
	var few atomic.Bool
	o.JobStore.FS = faultfs.Wrap(vfs.Default, func(op errorfs.Op) error {
		if few.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return syscall.EMFILE
		}
		return nil
	})
	r := run(t, o)
	c := client(t, r.NATS)
	for i := range 6 {
		payload := make([]byte, 64<<10) // a block of the table each
		_, _ = rand.Read(payload)
		put(t, c, carillon.Job{ID: in(1, fmt.Sprintf("far%d", i)), Schedule: "@yearly", Payload: payload, Form: carillon.PayloadBase64})
	}
	twoCheckpoints(t, c, "a")
	r.stop(t)

	o.CheckpointEvery = time.Hour // else Pebble would be the first to read them
	r = run(t, o)
	c = client(t, r.NATS)
	few.Store(true)
	if _, err := c.Send(t.Context(), carillon.Command{Verb: carillon.VerbFire, Job: in(1, "far3")}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node stops", func() bool {
		return contains(r.log, "stopped firing, waiting for fewer open files", "too many open files")
	})
	few.Store(false)
	r.again(t)
	ready(t, r)
	eventually(t, "what was asked for fires once", func() bool {
		fired := 0
		for _, o := range allOutputs(t, dial(t, r.NATS), partitions) {
			if o.trigger != nil && o.trigger.Job == in(1, "far3") {
				fired++
			}
		}
		return fired == 1
	})
	r.stop(t)
}

// A process that may open fewer files than a start needs waits until it may open more.
func TestFewOpenFiles(t *testing.T) {
	t.Parallel()
	p := mustSpawn(t, settings{Data: t.TempDir(), Partitions: partitions})
	nc := dial(t, p.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	beats(t, c, 3)
	var usual unix.Rlimit
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	// So many would be enough to open only the stores.
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: usual.Max}, nil); err != nil {
		t.Fatal(err)
	}
	notReady(t, p.HTTP, "too many files and connections are open: node: a start opens up to")
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, &usual, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is ready", func() bool { ok, _ := readyz(t, p.HTTP); return ok })
	beats(t, c, 10)
	unbroken(t, nc, c)
	p.terminate(t)
}

// A disk fills up while jobs on disk become due, and the checkpoints fail after which others could leave memory. Each job fires once.
func TestDiskFullCold(t *testing.T) {
	t.Parallel()
	const n = 400
	o := cold(base(t))
	disk, full := fillable()
	o.JobStore.FS = disk
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"id":"cold-%d","schedule":"@in %dms"}`, i, 2500+10*i))
	}
	if got := importLines(t, nc, "", lines...); got.Imported != n {
		t.Fatalf("%+v", got)
	}
	eventually(t, "jobs are on disk", func() bool { return metric(t, r.HTTP, "carillon_jobs_cold") > n/2 })
	full.Store(true)
	eventually(t, "a checkpoint fails", func() bool { return contains(r.log, "stopped firing, waiting for the disk") })
	full.Store(false)
	r.again(t)
	eventually(t, "all jobs have fired", func() bool {
		var done, waiting uint64
		for _, p := range status(t, c).Partitions {
			done += p.Jobs[carillon.StatusCompleted]
			waiting += p.Outputs - p.Published // a job is completed some milliseconds before it is due
		}
		return done == n && waiting == 0
	})
	fired := make(map[string]int)
	for _, o := range allOutputs(t, nc, partitions) {
		if o.trigger != nil {
			fired[o.trigger.Job]++
		}
	}
	for i := range n {
		if id := fmt.Sprintf("cold-%d", i); fired[id] != 1 {
			t.Errorf("%s fired %d times", id, fired[id])
		}
	}
	r.stop(t)
}

// On a disk without room for a snapshot a save fails and says why. Firing goes on, and the next save works once there is room.
func TestDiskFullAtSave(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 256)
	if !ok {
		return
	}
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, beat)
	for i := range 40 {
		payload := make([]byte, 100<<10)
		_, _ = rand.Read(payload)
		put(t, c, carillon.Job{ID: fmt.Sprintf("large-%d", i), Schedule: "@yearly", Payload: payload, Form: carillon.PayloadBase64})
	}
	drop := smalldisk.Fill(t, dir, 2<<20)
	target := filepath.Join(dir, "archive")
	_, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: target}, nil)
	if err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a save on a full disk: %v", err)
	}
	beats(t, c, 5)
	ready(t, r)
	drop()
	save(t, c, target)
	v, err := archive.Verify(t.Context(), archive.OpenDir(nil, target), nil, nil)
	if err != nil || len(v.Problems) > 0 || v.Snapshots != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	unbroken(t, nc, c)
	r.stop(t)
}

// A save is given up if it fills the disk of the data directory, and that has no room for new jobs any more: firing will need
// what is left. A save to another disk goes on.
func TestSaveLeavesRoomForFiring(t *testing.T) {
	other, ok := smalldisk.Mount(t, 64)
	if !ok {
		return
	}
	o := base(t)
	r := run(t, o)
	put(t, client(t, r.NATS), beat)
	r.stop(t)
	o.FreeForJobs = 1 << 60
	r = run(t, o)
	c := client(t, r.NATS)
	notReady(t, r.HTTP, "no new jobs are taken")
	for _, to := range []carillon.SnapshotRequest{{Dir: filepath.Join(t.TempDir(), "archive")}, {Bucket: "saves"}} {
		_, err := c.SaveSnapshot(t.Context(), to, nil)
		if !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) || !strings.Contains(err.Error(), "no snapshot is saved there") {
			t.Errorf("%+v: %v", to, err)
		}
	}
	save(t, c, filepath.Join(other, "archive"))
	beats(t, c, 5)
	r.stop(t)
}

// On a disk without room for what is restored, a restore fails, at once or on the way. It says why, leaves nothing behind, and
// works once there is room.
func TestDiskFullAtRestore(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 256)
	if !ok {
		return
	}
	target, want := saved(t, 10_000)
	for _, o := range []node.RestoreOptions{{}, {Partitions: 3}} {
		data := filepath.Join(dir, fmt.Sprint("data", o.Partitions))
		for _, free := range []uint64{64 << 10, 512 << 10, 1 << 20} {
			drop := smalldisk.Fill(t, dir, free)
			_, err := node.Restore(t.Context(), target, "", data, o)
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("with %d bytes free: %v", free, err)
			}
			left, globErr := filepath.Glob(data + "*")
			if globErr != nil || len(left) > 0 {
				t.Errorf("with %d bytes free %q is left behind, %v", free, left, globErr)
			}
			drop()
		}
		if _, err := node.Restore(t.Context(), target, "", data, o); err != nil {
			t.Fatal(err)
		}
		small := diskOptions(dir)
		small.Data, small.Partitions = data, 0
		again := run(t, small)
		if jobs := listJobs(t, client(t, again.NATS)); len(jobs) != len(want) {
			t.Errorf("%d jobs of %d are restored", len(jobs), len(want))
		}
		again.stop(t)
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
	}
}
