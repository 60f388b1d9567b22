package node_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// fleet is nodes in processes of their own, over one NATS.
type fleet struct {
	t          testing.TB
	url        string
	partitions int
	settings   map[string]settings
	nodes      map[string]*process
}

func newFleet(t testing.TB, url string, partitions int) *fleet {
	return &fleet{t: t, url: url, partitions: partitions, settings: make(map[string]settings), nodes: make(map[string]*process)}
}

// start starts a node, anew or again, and waits until it is ready.
func (f *fleet) start(name string) *process {
	f.t.Helper()
	s, known := f.settings[name]
	if !known {
		s = settings{Data: f.t.TempDir(), Name: name, NATS: f.url, Partitions: f.partitions, CheckpointEvery: 2 * time.Second}
		f.settings[name] = s
	}
	f.nodes[name] = mustSpawn(f.t, s)
	return f.nodes[name]
}

// owners says who serves each partition by the log, as the node that answers knows it.
func owners(s carillon.StatusReply) (names []string) {
	for _, p := range s.Partitions {
		names = append(names, p.Owner)
	}
	return names
}

// shared waits until the partitions are served by these nodes alone, each with its share.
func (f *fleet) shared(c *carillon.Client, among ...string) {
	f.t.Helper()
	most := (f.partitions + len(among) - 1) / len(among)
	eventually(f.t, fmt.Sprintf("the partitions are shared among %v", among), func() bool {
		count := make(map[string]int)
		for _, owner := range owners(status(f.t, c)) {
			count[owner]++
		}
		for name, n := range count {
			if n > most || !slices.Contains(among, name) {
				return false
			}
		}
		return len(count) == min(len(among), f.partitions)
	})
}

// resumed tells how long after a moment the outputs of a partition went on: the end of the longest time without any
// that begins then, give or take what was on its way.
func resumed(t testing.TB, all []output, at time.Time) time.Duration {
	t.Helper()
	last := at
	var longest, end time.Duration
	for _, o := range all {
		if o.stored.Before(at) {
			continue
		}
		if last.Sub(at) > 200*time.Millisecond {
			break
		}
		if gap := o.stored.Sub(last); gap > longest {
			longest, end = gap, o.stored.Sub(at)
		}
		last = o.stored
	}
	return end
}

// An owner that is killed at any moment is replaced by another node. Nothing is lost or repeated, and nothing is early.
func TestFailover(t *testing.T) {
	t.Parallel()
	rounds := many(t, "CARILLON_FAILOVERS", 3)
	e := startExternal(t)
	f := newFleet(t, e.url, 4)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		f.start(name)
	}
	c := client(t, e.url)
	f.shared(c, names...)
	l := startLoad(t, e.url, "f", true)
	type kill struct {
		at    time.Time
		owned []int
	}
	var killed []kill
	var downs []span
	for range rounds {
		time.Sleep(200*time.Millisecond + rand.N(time.Second)) // a random moment
		victim := owners(status(t, c))[rand.N(f.partitions)]
		k := kill{at: time.Now()}
		f.nodes[victim].kill()
		for p, owner := range owners(status(t, c)) {
			if owner == victim {
				k.owned = append(k.owned, p)
			}
		}
		eventually(t, "others serve its partitions", func() bool { return !slices.Contains(owners(status(t, c)), victim) })
		downs = append(downs, span{from: k.at.UnixMilli(), to: now()})
		killed = append(killed, k)
		f.start(victim)
		f.shared(c, names...)
	}
	h, end := l.finish()
	h.downs = downs
	h.verify(t, allOutputs(t, l.nc, f.partitions), end)
	var took []time.Duration
	for _, k := range killed {
		for _, p := range k.owned {
			took = append(took, resumed(t, outputs(t, l.nc, p), k.at).Round(time.Millisecond))
		}
	}
	slices.Sort(took)
	t.Logf("%d kills of owners of %d partitions; they went on after: median %s, p99 %s, longest %s",
		rounds, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	for _, p := range f.nodes {
		p.terminate(t)
	}
}
