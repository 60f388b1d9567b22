package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// child is a member in a process of its own.
type child struct {
	*joined
	cmd   *exec.Cmd
	ended chan error
}

func (h *host) child(name string) *child {
	h.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CLUSTER_TEST_NAME="+name, "CLUSTER_TEST_URL="+h.ns.ClientURL())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	c := &child{joined: &joined{t: h.t}, cmd: cmd, ended: make(chan error, 1)}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var v View
			if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
				break
			}
			c.add(v)
		}
		c.ended <- cmd.Wait()
		close(c.ended)
	}()
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		for range c.ended {
			continue
		}
	})
	return c
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func TestKilledIsTakenForDead(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, c := h.join("a"), h.child("c")
	b := h.join("b")
	before := a.placedFor("a", "b", "c")
	c.signal(syscall.SIGKILL)
	after := a.placedFor("a", "b")
	for p, assigned := range after.Placement {
		switch was := before.Placement[p]; {
		case was.Owner != "c" && assigned.Owner != was.Owner:
			t.Errorf("c was killed, and partition %d of %s moved", p, was.Owner)
		case was.Owner == "c" && assigned.Owner != was.Standbys[0]:
			t.Errorf("partition %d went to %s, not to its standby %s", p, assigned.Owner, was.Standbys[0])
		}
	}
	b.placedFor("a", "b")
	b.nc.Close()
	a.placedFor("a")
	h.child("c").placedFor("a", "c") // a killed node's name is free after the bound
}

// A node that was stopped is taken for dead. When it goes on, it finds nobody dead, and gets its share again.
func TestStoppedAndContinued(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b, c := h.join("a"), h.join("b"), h.child("c")
	a.placedFor("a", "b", "c")
	c.placedFor("a", "b", "c")
	told := len(c.told())
	c.signal(syscall.SIGSTOP)
	a.placedFor("a", "b")
	b.placedFor("a", "b")
	c.signal(syscall.SIGCONT)
	final := a.placedFor("a", "b", "c")
	c.until("it has the last placement", func(v View) bool { return v.Revision == final.Revision })
	for _, v := range c.told()[told:] {
		if !slices.Equal(names(v.Members), []string{"a", "b", "c"}) {
			t.Errorf("after its stop c found only %v live", names(v.Members))
		}
	}
}

func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, c := h.join("a"), h.child("c")
	a.placedFor("a", "c")
	for _, name := range []string{"a", "c"} {
		o := options(name)
		o.Bound = 20 * time.Second // a machine that stands still is silent, too
		if _, err := Join(t.Context(), a.js, o); !errors.Is(err, ErrNameTaken) {
			t.Fatalf("a second %s: %v", name, err)
		}
	}
	// A silent member loses its name to the next one that joins, and ends when it finds out.
	c.signal(syscall.SIGSTOP)
	a.placedFor("a")
	second := h.join("c")
	second.placedFor("a", "c")
	c.signal(syscall.SIGCONT)
	var exit *exec.ExitError
	if err := <-c.ended; !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("the first c ended with %v, want ErrNameTaken", err)
	}
	if v := second.View(); !slices.Equal(names(v.Members), []string{"a", "c"}) || second.Err() != nil {
		t.Errorf("the second c sees %v, %v", names(v.Members), second.Err())
	}
	if v, _ := a.View().Member("c"); v.Session != second.session {
		t.Errorf("a sees session %s of c, want %s", v.Session, second.session)
	}
}

// If the server is away for longer than the bound, no member is taken for dead, and no partition moves.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b := h.join("a", patiently), h.join("b", patiently)
	before := a.placedFor("a", "b")
	b.placedFor("a", "b")
	h.stop()
	for _, j := range []*joined{a, b} {
		from := j.troubles.Load()
		j.until("beats failed for more than the bound", func(View) bool { return j.troubles.Load() > from+int64(j.o.Bound*3/2/j.o.Interval) })
	}
	told := len(a.told())
	h.start()
	c := h.join("c", patiently)
	after := a.placedFor("a", "b", "c")
	c.placedFor("a", "b", "c")
	for _, v := range a.told()[told:] {
		if len(v.Members) < 2 {
			t.Errorf("a found only %v live", names(v.Members))
		}
	}
	for _, p := range moves(before.Placement, after.Placement) {
		if after.Placement[p].Owner != "c" {
			t.Errorf("partition %d moved to %s", p, after.Placement[p].Owner)
		}
	}
}

// A bucket that is deleted is made anew, with the placement that everybody remembers.
func TestBucketDeleted(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b := h.join("a", patiently), h.join("b", patiently) // or a busy machine makes somebody dead for a moment, and partitions move
	a.placedFor("a", "b")
	b.placedFor("a", "b")
	c := h.join("c", patiently)
	before := a.placedFor("a", "b", "c")
	for range 20 { // so that the new bucket's revisions stay below the old one's for a while
		if _, err := c.kv.PutString(t.Context(), "other", "x"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // each time the members make it again
		if err := a.js.DeleteKeyValue(t.Context(), a.o.Bucket); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "the bucket is there, with a's beats", func() bool {
			_, err := a.js.KeyValue(t.Context(), a.o.Bucket)
			_, why := a.BeatsFailing()
			return err == nil && why == nil
		})
	}
	d := h.join("d", patiently)
	for _, j := range []*joined{a, b, c, d} {
		after := j.placedFor("a", "b", "c", "d")
		for _, p := range moves(before.Placement, after.Placement) {
			if after.Placement[p].Owner != "d" {
				t.Errorf("partition %d moved to %s", p, after.Placement[p].Owner)
			}
		}
	}
}

// If somebody purges the placement, which no watch shows, it is made again from the one that the members remember.
func TestPlacementPurged(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b, c := h.join("a"), h.join("b"), h.join("c")
	before := a.placedFor("a", "b", "c")
	b.placedFor("a", "b", "c")
	stream, err := a.js.Stream(t.Context(), "KV_"+a.o.Bucket)
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+a.o.Bucket+"."+placementKey))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := a.placedFor("a", "b")
	for _, p := range moves(before.Placement, after.Placement) {
		if owner := before.Placement[p].Owner; owner != "c" {
			t.Errorf("partition %d moved from %s", p, owner)
		}
	}
	b.placedFor("a", "b")
}

// However often a watch is asked to begin again, it first reads all that the bucket has. Otherwise, while a placement cannot be written
// because the one before was purged, none would ever get so far as to find that.
func TestWatchReadsAllFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	js, _ := h.connect()
	o := options("a").withDefaults()
	kv, _, err := openBucket(t.Context(), js, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // one that ends too early may have read all by chance
		m := &Member{
			o: o, js: js, kv: kv, roster: newRoster("a", o.Interval, o.Bound), start: time.Now(), placementRevision: 125,
			renewed: make(chan struct{}, 1), views: make(chan View, 1), known: make(chan struct{}), kick: make(chan struct{}, 1),
		}
		ended := make(chan struct{})
		var asks sync.WaitGroup
		asks.Go(func() {
			for {
				select {
				case <-ended:
					return
				case m.renewed <- struct{}{}:
				}
			}
		})
		err = m.watchOnce(t.Context())
		close(ended)
		asks.Wait()
		if !m.watched || m.placementRevision != 0 {
			t.Fatalf("a watch of a bucket without a placement ended with %v; it had read all: %t, the placement's revision is %d",
				err, m.watched, m.placementRevision)
		}
	}
}

// A member that joins when a bucket was just made anew, and finds the placement but not yet the keys of those it was made for, gives
// them a bound to write these. A member whose key was removed has left, and is not waited for.
func TestPlacesForThoseWhoseKeysAreLost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	js, _ := h.connect()
	for _, left := range []bool{false, true} {
		o := options("d").withDefaults()
		o.Bucket = fmt.Sprintf("lost-%t", left)
		kv, _, err := openBucket(t.Context(), js, o)
		if err != nil {
			t.Fatal(err)
		}
		m := &Member{
			o: o, js: js, kv: kv, roster: newRoster("d", o.Interval, o.Bound), start: time.Now(),
			watched: true, views: make(chan View, 1), known: make(chan struct{}), kick: make(chan struct{}, 1),
		}
		nodes := []Node{{Name: "a"}, {Name: "b"}}
		if err := m.writePlacement(t.Context(), storedPlacement{Nodes: nodes, Standbys: 1, Assignments: Place(nil, nodes, o.Partitions, 1)}, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			m.roster.beat(0, 1, said(n.Name, n.Name), true)
			m.roster.remove(n.Name)
		}
		if !left {
			m.roster = newRoster("d", o.Interval, o.Bound)
		}
		m.roster.beat(0, 1, said("d", "d"), false)
		m.told = true
		remembered := m.placementRevision
		var last outdated
		place := func() (anew bool) {
			t.Helper()
			if err := m.place(t.Context(), &last); err != nil {
				t.Fatal(err)
			}
			return m.placementRevision != remembered
		}
		if anew := place(); anew != left {
			t.Errorf("others have left: %t; placed anew at once: %t", left, anew)
		}
		m.start = m.start.Add(-o.Bound)
		if !place() {
			t.Errorf("others have left: %t; not placed anew after the bound", left)
		}
	}
}

// A watch that died silently is noticed, because beats do not come back.
func TestWatchIsBegunAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a := h.join("a")
	a.placedFor("a")
	stream, err := a.js.Stream(t.Context(), "KV_"+a.o.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	consumers := stream.ConsumerNames(t.Context())
	deleted := 0
	for name := range consumers.Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
		deleted++
	}
	if err := consumers.Err(); err != nil || deleted == 0 {
		t.Fatalf("%d watches: %v", deleted, err)
	}
	b := h.join("b")
	a.placedFor("a", "b")
	b.placedFor("a", "b")
}

// openEnded is a JetStream whose watches are never closed. The client library's are not if the context ends just when it has made them.
type openEnded struct {
	jetstream.JetStream
	t testing.TB
}

func (j openEnded) CreateKeyValue(ctx context.Context, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := j.JetStream.CreateKeyValue(ctx, cfg)
	return openEndedBucket{kv, j.t}, err
}

type openEndedBucket struct {
	jetstream.KeyValue
	t testing.TB
}

func (b openEndedBucket) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := b.KeyValue.WatchAll(ctx, opts...)
	if err != nil {
		return nil, err
	}
	updates, forwarded := make(chan jetstream.KeyValueEntry), make(chan struct{})
	go func() {
		defer close(forwarded)
		for e := range w.Updates() {
			updates <- e
		}
	}()
	b.t.Cleanup(func() { // so that the test leaves no goroutine
		<-forwarded
		close(updates)
	})
	return openEndedWatch{w, updates}, nil
}

type openEndedWatch struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
}

func (w openEndedWatch) Updates() <-chan jetstream.KeyValueEntry { return w.updates }

// A member ends even if its watch does not.
func TestEndsBesideWatch(t *testing.T) {
	t.Parallel()
	js, _ := newHost(t).connect()
	m, err := Join(t.Context(), openEnded{js, t}, options("a"))
	if err != nil {
		t.Fatal(err)
	}
	<-m.Known()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Close()
	}()
	natstest.Receive(t, "the member ends without its watch", ended)
}

// If no watch brings changes, the keys are read.
func TestAsksWithoutWatch(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	b := h.join("b")
	placed := b.placedFor("b")
	m := &Member{
		o: options("a").withDefaults(), kv: b.kv, roster: newRoster("a", b.o.Interval, b.o.Bound), kick: make(chan struct{}, 1),
		views: make(chan View, 1), known: make(chan struct{}), watched: true,
	}
	m.roster.beat(0, 1, said("b", b.session), true)
	m.roster.beat(0, 1, said("a", "a"), false)
	for i := range 2 * askedAtOnce { // keys of members that died long ago
		name := fmt.Sprintf("dead-%d", i)
		m.roster.members[name] = &seen{Beat: said(name, name), at: -time.Minute}
	}
	m.putAt.Store(int64(time.Hour))
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { m.ask(ctx) })
	defer asking.Wait()
	defer stop()
	if v := natstest.Receive(t, "the keys are asked for", m.views); !slices.Equal(names(v.Members), []string{"a", "b"}) {
		t.Errorf("live are %v", names(v.Members))
	}
	natstest.Eventually(t, "it has the placement", func() bool { return m.View().Revision == placed.Revision })
}

// unheard is a bucket whose first reads of each key get no answer.
type unheard struct {
	jetstream.KeyValue
	mu    sync.Mutex
	first map[string]int // how many were made, by key
}

func (u *unheard) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	u.mu.Lock()
	u.first[key]++
	lost := u.first[key] <= 2
	u.mu.Unlock()
	if lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return u.KeyValue.Get(ctx, key)
}

// A read that is not answered is made again beside the first: each goes to a random replica, also to one that is out of reach.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	b := newHost(t).join("b")
	b.placedFor("b")
	o := options("a").withDefaults()
	o.Interval, o.Bound = time.Hour, 4*time.Hour
	m := &Member{o: o, kv: &unheard{KeyValue: b.kv, first: make(map[string]int)}, roster: newRoster("a", o.Interval, o.Bound)}
	m.roster.beat(0, 1, said("b", b.session), true)
	read := make(chan struct{})
	go func() {
		defer close(read)
		m.askOnce(t.Context())
	}()
	natstest.Receive(t, "the keys are read", read)
	if m.placementRevision == 0 || m.roster.revision("b") <= 1 {
		t.Errorf("read the placement at revision %d, and b's key at %d", m.placementRevision, m.roster.revision("b"))
	}
}

// What a replica says that is behind is no sign of life.
func TestReadThatIsBehind(t *testing.T) {
	m := slowMember(newSlowBucket(options("a").withDefaults()))
	m.roster.beat(0, 9, said("a", m.session), false)
	for _, revision := range []uint64{5, 9, 10} {
		m.takeNewer(&slowEntry{key: m.key, value: m.beat(), revision: revision})
		if got := m.roster.revision("a"); got != max(9, revision) {
			t.Errorf("after a read of revision %d the newest one is %d", revision, got)
		}
	}
}

// Garbage under the bucket's keys neither stops a member nor counts as one.
func TestGarbage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b := h.join("a"), h.join("b")
	before := a.placedFor("a", "b")
	for key, value := range map[string]string{"node.x": "{", "node.y": `{"name":"z","session":"s"}`, "other": "?", placementKey: "[]"} {
		if _, err := a.kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	after := a.until("the placement is written anew", func(v View) bool { return v.Revision > before.Revision && v.Placement.Equal(before.Placement) })
	if !slices.Equal(names(after.Members), []string{"a", "b"}) {
		t.Errorf("live are %v", names(after.Members))
	}
	// A placement of another number of partitions is ignored.
	if _, err := a.kv.PutString(t.Context(), placementKey, `{"seats":[{"owner":"a"}]}`); err != nil {
		t.Fatal(err)
	}
	a.until("the placement is written anew", func(v View) bool {
		return v.Revision > after.Revision+1 && v.Placement.Equal(before.Placement)
	})
	for _, j := range []*joined{a, b} {
		told := j.troubles.Load()
		j.until("it tells what others write", func(View) bool {
			// Again and again: a beat that replaces it before the watch brings it takes it away from the watch.
			if _, err := a.kv.PutString(t.Context(), j.key, "{"); err != nil {
				t.Fatal(err)
			}
			return j.troubles.Load() > told
		})
		j.hasItsKey()
	}
	c := h.join("c")
	c.placedFor("a", "b", "c")
	b.placedFor("a", "b", "c")
	// Nor does a well-formed beat under a member's name that is written once.
	for _, j := range []*joined{a, b} {
		if _, err := a.kv.PutString(t.Context(), j.key, fmt.Sprintf(`{"name":%q,"weight":1,"session":"foreign"}`, j.o.Name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, j := range []*joined{a, b} {
		j.hasItsKey()
	}
	c.placedFor("a", "b", "c")
}

// A member takes its key back at once when another session has written it, and meanwhile others see no beat but its own. If that session
// writes the key again and again, the member ends.
func TestForeignBeats(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	lasting := func(o *Options) { o.Bound = time.Hour } // nothing here waits for it
	a, b := h.join("a", lasting), h.join("b", lasting)
	b.until("it sees both", func(v View) bool { return slices.Equal(names(v.Members), []string{"a", "b"}) })
	foreign := func() {
		t.Helper()
		if _, err := a.kv.PutString(t.Context(), a.key, `{"name":"a","weight":1,"session":"foreign"}`); err != nil {
			t.Fatal(err)
		}
	}
	foreign()
	a.hasItsKey()
	natstest.Eventually(t, "the other session has the name", func() bool {
		foreign()
		select {
		case <-a.done:
			return true
		default:
			return false
		}
	})
	if !errors.Is(a.Err(), ErrNameTaken) {
		t.Errorf("it ended with %v", a.Err())
	}
	for _, v := range b.told() {
		if one, live := v.Member("a"); live && one.Session != a.session {
			t.Errorf("b took session %s for a", one.Session)
		}
	}
}

// hasItsKey waits until a member's key holds a beat of its own.
func (j *joined) hasItsKey() {
	j.t.Helper()
	natstest.Eventually(j.t, j.o.Name+" has its key", func() bool {
		e, err := j.kv.Get(j.t.Context(), j.key)
		if err != nil || j.Err() != nil {
			j.t.Fatal(err, j.Err())
		}
		beat, err := parseBeat(j.key, e.Value())
		return err == nil && beat.Session == j.session
	})
}

// A weight that no node can have would outweigh all others, or overflow where weights are multiplied.
func TestWeightsOfBeatsAreBounded(t *testing.T) {
	for said, want := range map[string]int{"-1": 0, "0": 0, "7": 7, "1000": 1000, "1001": MaxWeight, "4000000000000000000": MaxWeight} {
		if b, err := parseBeat("node.a", []byte(`{"name":"a","session":"s","weight":`+said+`}`)); err != nil || b.Weight != want {
			t.Errorf("weight %s counts as %d, want %d: %v", said, b.Weight, want, err)
		}
	}
}

// BenchmarkDeath is the time from a member's last sign of life until another has the placement without it, with the
// default interval and bound.
func BenchmarkDeath(b *testing.B) {
	h := newHost(b)
	defaults := func(o *Options) { o.Interval, o.Bound = 0, 0 }
	first := h.join("a", defaults)
	for b.Loop() {
		b.StopTimer()
		second := h.join("b", defaults)
		first.placedFor("a", "b")
		b.StartTimer()
		second.Close()
		first.placedFor("a")
	}
}

// The key of a member that is long dead is removed, and nobody remembers the member. If a member was only frozen for so long, it comes
// back with its key, and harms nothing.
func TestLongDeadAreForgotten(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b, c := h.join("a"), h.join("b"), h.child("c")
	a.placedFor("a", "b", "c")
	b.placedFor("a", "b", "c")
	c.signal(syscall.SIGSTOP)
	a.placedFor("a", "b")
	b.placedFor("a", "b")
	if _, err := a.kv.Get(t.Context(), nodePrefix+"c"); err != nil {
		t.Fatalf("the key of one that died a moment ago: %v", err)
	}
	for _, j := range []*joined{a, b} { // an hour passes
		j.Member.mu.Lock()
		j.roster.members["c"].at -= abandonedAfter
		j.Member.mu.Unlock()
	}
	remembered := func(j *joined) bool { return slices.Contains(j.keys(), nodePrefix+"c") }
	natstest.Eventually(t, "a and b have forgotten c", func() bool { return !remembered(a) && !remembered(b) })
	if _, err := a.kv.Get(t.Context(), nodePrefix+"c"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the key of one that is long dead: %v", err)
	}
	// So is a member whose key was in a bucket that was lost since.
	a.Member.mu.Lock()
	a.roster.members["ghost"] = &seen{Beat: Beat{Node: Node{Name: "ghost"}}, revision: 1 << 40, at: a.roster.heard - 2*abandonedAfter}
	a.Member.mu.Unlock()
	natstest.Eventually(t, "a has forgotten the member whose key is gone", func() bool {
		a.Member.mu.Lock()
		defer a.Member.mu.Unlock()
		return a.roster.revision("ghost") == 0
	})
	c.signal(syscall.SIGCONT)
	v := a.placedFor("a", "b", "c")
	b.placedFor("a", "b", "c")
	c.until("it has the last placement", func(last View) bool { return last.Revision == v.Revision })
}

// A beat that was stored but whose answer was lost is followed by another one at once, because others wait for it.
func TestBeatAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a := h.join("a", func(o *Options) { o.Interval, o.Bound = time.Hour, 4*time.Hour })
	unanswered, err := a.kv.Update(t.Context(), a.key, a.beat(), a.revision)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := a.beatOnce(t.Context()); other != nil || err != nil {
		t.Fatalf("the name is another's: %v, %v", other, err)
	}
	e, err := a.kv.Get(t.Context(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if e.Revision() <= unanswered || e.Revision() != a.revision {
		t.Errorf("the beat after %d is %d, and taken for %d", unanswered, e.Revision(), a.revision)
	}
}
