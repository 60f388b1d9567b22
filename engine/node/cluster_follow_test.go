package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// followers returns which of some nodes follow each partition, according to their own beats.
func followers(t testing.TB, nc *nats.Conn, partitions int, of []string) [][]string {
	t.Helper()
	bucket, err := jetStream(t, nc).KeyValue(t.Context(), "CARILLON_NODES")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := bucket.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := make([][]string, partitions)
	for key := range keys.Keys() {
		if name, ok := strings.CutPrefix(key, "node."); !ok || !slices.Contains(of, name) {
			continue
		}
		e, err := bucket.Get(t.Context(), key)
		if err != nil {
			continue // it has just left
		}
		var b cluster.Beat
		if err := json.Unmarshal(e.Value(), &b); err != nil {
			t.Fatal(err)
		}
		for p := range all {
			if _, ok := b.Progress(p); ok {
				all[p] = append(all[p], b.Name)
			}
		}
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// placed waits until each partition is followed by exactly the nodes on which it is placed, and served by its owner.
func (f *fleet) placed(c *carillon.Client, nc *nats.Conn, placed *placements, among ...string) {
	f.t.Helper()
	f.settled(c, placed, among...)
	eventually(f.t, "each partition is followed by those on whom it is placed alone", func() bool { return f.followedAsPlaced(nc, placed, among) })
}

func (f *fleet) followedAsPlaced(nc *nats.Conn, placed *placements, among []string) bool {
	f.t.Helper()
	_, last := placed.latest()
	for _, name := range among {
		if !slices.ContainsFunc(last, func(s cluster.Assignment) bool { return s.Owner == name }) {
			return false
		}
	}
	for p, names := range followers(f.t, nc, f.partitions, among) {
		want := append([]string{last[p].Owner}, last[p].Standbys...)
		slices.Sort(want)
		if !slices.Equal(names, want) {
			return false
		}
	}
	return true
}

// Nodes that follow what is placed on them have only the jobs of those partitions. Each of them answers any request, and
// partitions move when nodes come, leave and die.
func TestFollowPlaced(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	f := newFleet(t, e.url, 8)
	f.follow = node.FollowPlaced
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	f.startAll(c, "a", "b", "c")
	placed := watchPlacements(t, nc)
	f.placed(c, nc, placed, "a", "b", "c")
	preload(t, e.url, 3000)
	l := startLoad(t, e.url, "p", true)
	l.far = 3000
	f.start("d")
	f.placed(c, nc, placed, "a", "b", "c", "d")

	// No answer is sent to the subjects on which nodes ask each other.
	forged, err := nc.SubscribeSync("carillon.node.*.forged")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("carillon.api.get.nothing", "carillon.node.a.forged", nil); err != nil {
		t.Fatal(err)
	}

	// Each request goes to any of the four.
	for round := range 12 {
		askAll(t, c, f.partitions, round)
	}
	saveAll(t, nc, f.partitions)
	if n, _, err := forged.Pending(); err != nil || n > 0 {
		t.Errorf("%d answers, %v", n, err)
	}

	// One leaves, one is killed, both come back.
	f.nodes["b"].terminate(t)
	f.placed(c, nc, placed, "a", "c", "d")
	f.nodes["c"].kill()
	f.placed(c, nc, placed, "a", "d")
	f.start("b")
	f.start("c")
	f.placed(c, nc, placed, "a", "b", "c", "d")
	l.verify(f.partitions)
	f.nodes["a"].terminate(t) // first: those that are left may take all of its partitions
	f.terminate()

	// What one of them has is not enough for a snapshot of the service.
	one := node.Options{Data: f.settings["a"].Data}
	_, err = node.SaveStopped(t.Context(), one, archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive")), node.SaveOptions{})
	words(t, err, "of 8 partitions", "save a snapshot of the running service")
}

// saveAll saves snapshots, first one after the other, then two at a time. It checks that each is complete, and that nothing is
// left of what the nodes gave each other for them.
func saveAll(t *testing.T, nc *nats.Conn, partitions int) {
	t.Helper()
	store, err := jetStream(t, nc).ObjectStore(t.Context(), "CARILLON_STATE")
	if err != nil {
		t.Fatal(err)
	}
	given := func() int {
		t.Helper()
		list, err := store.List(t.Context())
		if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
			t.Fatal(err)
		}
		return len(list)
	}
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	before := given()
	for range 4 {
		saveWhole(t, c, filepath.Join(t.TempDir(), "archive"), partitions)
	}
	if after := given(); after > before {
		t.Errorf("%d objects of parts are left, %d were there", after, before)
	}
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() { saveWhole(t, c, filepath.Join(t.TempDir(), "archive"), partitions) })
	}
	work.Wait()
}

func saveWhole(t *testing.T, c *carillon.Client, dir string, partitions int) {
	t.Helper()
	for began := time.Now(); ; {
		_, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: dir}, nil)
		if err == nil {
			break
		}
		late := errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) && time.Since(began) < time.Minute
		if !late && !strings.Contains(err.Error(), "another snapshot is being saved") { // by the node that was asked
			t.Error(err)
			return
		}
	}
	target := archive.OpenDir(nil, dir)
	m, err := archive.Get(t.Context(), target, "")
	if err != nil || len(m.Partitions) != partitions {
		t.Errorf("%v, %+v", err, m)
	}
	if v, err := archive.Verify(t.Context(), target, nil, nil); err != nil || len(v.Problems) > 0 {
		t.Errorf("%v, %+v", err, v)
	}
}

// A node that follows no partition stores the log all the same, and cuts it.
func TestIdleNodeCutsItsLog(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	f := newFleet(t, e.url, 1)
	for _, name := range []string{"a", "b"} {
		f.settings[name] = settings{
			Data: t.TempDir(), Name: name, NATS: e.url, Partitions: 1, CheckpointEvery: time.Millisecond,
			Follow: node.FollowPlaced, Standbys: -1, Linger: time.Millisecond,
		}
		f.start(name)
	}
	nc := dial(t, e.url)
	c := client(t, e.url)
	var idle string
	settle := func() {
		t.Helper()
		eventually(t, "one of them follows nothing", func() bool {
			of := followers(t, nc, 1, []string{"a", "b"})[0]
			idle = map[string]string{"a": "b", "b": "a"}[strings.Join(of, "")]
			return idle != ""
		})
	}
	began := time.Now()
	for round, first := 0, uint64(1); first == 1; round++ {
		if round >= 20 && time.Since(began) > 30*time.Second { // 20 rounds take long on a slow machine, and hardly any time on a quick one
			t.Fatal("its log is not cut")
		}
		settle()
		put(t, c, carillon.Job{ID: "job", Schedule: "@at 2038-01-01T00:00:00Z"})
		f.nodes[idle].terminate(t)
		store := openStore(t, f.settings[idle].Data, "log")
		first = store.Log().First()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		f.start(idle)
	}
	f.terminate()
}

// The counts of jobs that came into memory do not fall when a partition is given up, nor when it is followed again: a rate would take what
// is left of them for new.
func TestLoadedJobsStayCounted(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	nodes := make(map[string]*running)
	for _, name := range []string{"a", "b"} {
		o := cold(e.options(t))
		o.Name, o.Partitions, o.Follow, o.Standbys, o.Linger = name, 1, node.FollowPlaced, -1, time.Millisecond
		nodes[name] = run(t, o)
	}
	c := client(t, e.url)
	var jobs []carillon.Job
	for i := range 10 {
		jobs = append(jobs, carillon.Job{ID: fmt.Sprint("far", i), Schedule: "@at 2038-01-01T00:00:00Z"})
		put(t, c, jobs[i])
	}
	loaded := func(name string) float64 { return metric(t, nodes[name].HTTP, "carillon_jobs_loaded_total") }
	follows := func(name string) bool { return metric(t, nodes[name].HTTP, "carillon_partitions_followed") == 1 }
	moves := func(from, to string) {
		t.Helper()
		if _, err := c.DrainNode(t.Context(), to, true); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DrainNode(t.Context(), from, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, from+" gives the partition up to "+to, func() bool { return !follows(from) && follows(to) })
	}
	moves("b", "a")
	eventually(t, "jobs have left memory, and come back", func() bool {
		_, pauseErr := c.Pause(t.Context(), jobs[0].ID)
		_, resumeErr := c.Resume(t.Context(), jobs[0].ID)
		if err := errors.Join(pauseErr, resumeErr); err != nil {
			t.Fatal(err)
		}
		return loaded("a") >= 3
	})
	before := loaded("a")
	moves("a", "b")
	if after := loaded("a"); after < before {
		t.Errorf("%v jobs came into memory, %v are counted when the partition is given up", before, after)
	}
	moves("b", "a")
	if after := loaded("a"); after < before {
		t.Errorf("%v jobs came into memory, %v are counted when the partition is followed again", before, after)
	}
}

// askAll puts jobs, and checks that all answers about them are right.
func askAll(t *testing.T, c *carillon.Client, partitions, round int) {
	t.Helper()
	const jobs = 64
	prefix := fmt.Sprintf("ask:%d:", round)
	var want []string
	err := c.Import(t.Context(), func(yield func(carillon.ImportJob) bool) {
		for i := range jobs {
			id := fmt.Sprintf("%s%02d", prefix, i)
			want = append(want, id)
			if !yield(carillon.ImportJob{Job: carillon.Job{ID: id, Schedule: "@at 2038-01-01T00:00:00Z", Payload: make([]byte, 100)}}) {
				return
			}
		}
	}, func(i int, err error) {
		if err != nil {
			t.Errorf("round %d: job %d was not imported: %v", round, i, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for page := (carillon.ListRequest{Selection: carillon.Selection{Prefix: prefix}, Limit: 10}); ; {
		r, err := c.ListPage(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		for _, job := range r.Jobs {
			got = append(got, job.ID)
		}
		if page.Cursor = r.Cursor; page.Cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("round %d: listed %v", round, got)
	}
	for p := range partitions {
		id := idIn(p, partitions, prefix+"one")
		if r := put(t, c, carillon.Job{ID: id, Schedule: "@at 2038-01-01T00:00:00Z"}); r.Partition != p {
			t.Errorf("round %d: %s is in partition %d, not %d", round, id, r.Partition, p)
		}
		if r, err := c.Pause(t.Context(), id); err != nil || r.Status != carillon.StatusPaused {
			t.Errorf("round %d: pause of %s: %+v, %v", round, id, r, err)
		}
		if r, err := c.Get(t.Context(), id); err != nil || r.Status != carillon.StatusPaused {
			t.Errorf("round %d: %s: %+v, %v", round, id, r, err)
		}
		if _, err := c.Get(t.Context(), id+"-not"); !errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
			t.Errorf("round %d: a job that is not there: %v", round, err)
		}
	}
	var s carillon.StatusReply
	eventually(t, "every node tells of its partitions", func() bool { // a status may come from a node that has yet to apply the pauses
		s = status(t, c)
		return !slices.ContainsFunc(s.Partitions, func(p carillon.PartitionStatus) bool { return p.Owner == "" || p.Jobs[carillon.StatusPaused] == 0 })
	})
	for p, of := range s.Partitions {
		if of.Partition != p || of.Owner == "" || of.Epoch == 0 || of.Jobs[carillon.StatusPaused] == 0 || of.Jobs[carillon.StatusScheduled] == 0 {
			t.Errorf("round %d: node %s tells of partition %d: %+v", round, s.Node, p, of)
		}
	}
	r, again := selected(t, c.DeleteWhere, carillon.Selection{Prefix: prefix})
	n := uint64(jobs + partitions)
	if !again && (r.Matched != n || r.Changed != n) || r.Changed > n {
		t.Errorf("round %d: delete of %d: %+v", round, n, r)
	}
	for job, err := range c.List(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Prefix: prefix}}) {
		t.Errorf("round %d: %s is left, %v", round, job.ID, err)
	}
}

// A page has all of its jobs, whichever nodes have them: also if more of them are in one partition than were asked for at once, and if those
// that were asked for are larger than a message. So has a selection, and it counts them.
func TestManyJobsOfOthers(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	for _, name := range []string{"a", "b"} {
		o := e.options(t)
		o.Name, o.Follow, o.Standbys, o.Linger = name, node.FollowPlaced, -1, time.Millisecond
		run(t, o)
	}
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	eventually(t, "each follows one partition", func() bool {
		of := followers(t, nc, partitions, []string{"a", "b"})
		return len(of[0]) == 1 && len(of[1]) == 1 && of[0][0] != of[1][0]
	})
	large := make([]byte, 400<<10) // in a page in base64: two of them are more than a message
	var want, lines []string
	for p := range partitions {
		for i := range carillon.DefaultListLimit - 30 {
			id := in(p, fmt.Sprintf("%d-%02d-", p, i))
			want, lines = append(want, id), append(lines, `{"id":"`+id+`","owner":"all"}`)
		}
		for i := range 3 {
			id := in(p, fmt.Sprint("large", i))
			want = append(want, id)
			put(t, c, carillon.Job{ID: id, Owner: "all", Payload: large, Form: carillon.PayloadBase64})
		}
	}
	importLines(t, nc, "", lines...)
	slices.Sort(want)
	for range 6 { // either node answers
		var got []string
		for job, err := range c.List(t.Context(), carillon.ListRequest{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, job.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("listed are %q, want %q", got, want)
		}
	}
	if _, err := c.Pause(t.Context(), want[0]); err != nil {
		t.Fatal(err)
	}
	for round, unchanged := range []uint64{1, uint64(len(want))} {
		counts, again := selected(t, c.PauseWhere, carillon.Selection{Owner: "all"})
		paused := carillon.SelectionReply{Type: counts.Type, Matched: uint64(len(want)), Changed: uint64(len(want)) - unchanged, Unchanged: unchanged}
		if !again && counts != paused {
			t.Errorf("round %d: pausing all of %d: %+v", round, len(want), counts)
		}
	}
}

// selected sends a command on a selection, and sends it again until it has been carried out on all of it: a node may not answer
// another one in time. again says that it was sent more than once: then r does not count what was changed before.
func selected(t testing.TB, command func(context.Context, carillon.Selection) (carillon.SelectionReply, error), s carillon.Selection) (r carillon.SelectionReply, again bool) {
	t.Helper()
	eventually(t, "a command is carried out on a selection", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var err error
		r, err = command(ctx, s)
		if err != nil && !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
			t.Fatal(err)
		}
		done := err == nil && r.Failed == 0
		again = again || !done
		return done
	})
	return r, again
}

// As long as no live node follows a partition, the log is kept for the one that did, whatever comes. Requests have to wait for
// room instead, and that node goes on from where it was.
func TestLogIsKeptForWhoIsMissed(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	f := newFleet(t, e.url, 2)
	for _, name := range []string{"a", "b"} {
		f.settings[name] = settings{
			Data: t.TempDir(), Name: name, NATS: e.url, Partitions: 2, CheckpointEvery: 100 * time.Millisecond, LogMaxBytes: 4 << 20,
			Follow: node.FollowPlaced, Standbys: -1, Linger: time.Millisecond,
		}
	}
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	f.startAll(c, "a", "b")
	placed := watchPlacements(t, nc)
	f.placed(c, nc, placed, "a", "b")
	of := map[string]int{}
	for p, owner := range owners(status(t, c)) {
		of[owner] = p
	}
	kept := put(t, c, carillon.Job{ID: idIn(of["b"], 2, "kept"), Schedule: "@at 2038-01-01T00:00:00Z"})
	f.nodes["b"].kill()

	full := false
	for i := 0; !full; i++ {
		job := carillon.Job{ID: idIn(of["a"], 2, fmt.Sprint("flood-", i)), Schedule: "@at 2038-01-01T00:00:00Z", Payload: make([]byte, 16<<10)}
		_, err := c.Put(t.Context(), job)
		full = errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded})
		if err != nil && !full {
			t.Fatal(err)
		}
	}
	f.start("b")
	if r, err := c.Get(t.Context(), kept.ID); err != nil || r.Version != kept.Version {
		t.Errorf("%+v, %v", r, err)
	}
	f.shared(c, "a", "b")
	eventually(t, "there is room again", func() bool {
		_, err := c.Put(t.Context(), carillon.Job{ID: idIn(of["a"], 2, "more")})
		return err == nil
	})
	f.terminate()
}

// A request for what is no job id is refused where it arrives. In the subject of a request between nodes an id that is longer than any would
// make a line that nats-server does not take: it would close the connection of all requests.
func TestNoJobIDIsNotPassedOn(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	var runs []*running
	for _, name := range []string{"a", "b"} {
		o := e.options(t)
		o.Name, o.Follow, o.Standbys, o.Linger = name, node.FollowPlaced, -1, time.Millisecond
		runs = append(runs, run(t, o))
	}
	nc := dial(t, e.url)
	eventually(t, "each node follows one of two partitions alone", func() bool {
		all := followers(t, nc, partitions, []string{"a", "b"})
		return !slices.ContainsFunc(all, func(of []string) bool { return len(of) != 1 }) && len(slices.Compact(slices.Concat(all...))) > 1
	})
	answers, err := nc.SubscribeSync("r") // a short subject leaves more of the line to the id
	if err != nil {
		t.Fatal(err)
	}
	for i := range 16 { // any node gets it
		id := idIn(i%partitions, partitions, strings.Repeat("x", 4040))
		for _, verb := range []string{"put", "delete", "fire", "get"} {
			if err := nc.PublishRequest("carillon.api."+verb+"."+id, "r", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			m, err := answers.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
			if refusal := carillon.ParseError(m.Data); refusal.Code != carillon.CodeInvalidJobID {
				t.Errorf("%s: %v", verb, refusal)
			}
		}
	}
	for _, r := range runs {
		if line := line(r.log, "waiting for NATS"); line != "" {
			t.Error(line)
		}
		r.stop(t)
	}
}
