package node_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
)

// Requests while nodes leave and come, with each node following what is placed on it. Two tests, because what is promised differs:
//
//   - TestLeavesAnswered: every request has an answer. It asks without the client library, which would ask again. A node stays away
//     until the others have its partitions, so that they forward to it for as long as they may.
//   - TestAnswersThroughout: every command that a node has admitted is carried out, and nodes that come know which one to ask. It fires
//     jobs, which the library does not repeat. A node is back as soon as the others answer, while partitions still move.

// placedFleet is three nodes that follow what is placed on them, with a job in each partition.
type placedFleet struct {
	*fleet
	c          *carillon.Client
	nc         *nats.Conn
	placements *placements
	ids        []string // of the jobs, by partition
}

func startPlaced(t *testing.T) *placedFleet {
	t.Helper()
	e := startExternal(t)
	f := &placedFleet{fleet: newFleet(t, e.url, 8), nc: dial(t, e.url), c: client(t, e.url)}
	f.follow = node.FollowPlaced
	f.startAll(f.c, "a", "b", "c")
	f.placements = watchPlacements(t, f.nc)
	f.placed("a", "b", "c")
	for p := range f.partitions {
		f.ids = append(f.ids, idIn(p, f.partitions, "asked-"))
		put(t, f.c, carillon.Job{ID: f.ids[p]})
	}
	return f
}

func (f *placedFleet) placed(among ...string) {
	f.t.Helper()
	f.fleet.placed(f.c, f.nc, f.placements, among...)
}

// askWhileNodesLeave has eight clients ask about one job after the other, while the named nodes leave and come back, one at a time. ask
// returns whether there was an answer. A node is started again when away has returned, and the others have answered a hundred requests.
// old is how many requests the nodes did not answer because they may have been old, as after the machine stood still (freshness).
func (f *placedFleet) askWhileNodesLeave(leave []string, client func() (ask func(i int, job string) bool), away func(name string)) (old int) {
	f.t.Helper()
	ignored := func(name string) int {
		return int(metric(f.t, f.nodes[name].HTTP, `carillon_requests_ignored_total{reason="old"}`))
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var asking sync.WaitGroup
	var answers atomic.Int64
	for i := range 8 {
		ask := client()
		asking.Go(func() {
			for ; ctx.Err() == nil; i++ {
				if ask(i, f.ids[i%len(f.ids)]) {
					answers.Add(1)
				}
			}
		})
	}
	for _, name := range leave {
		before := answers.Load()
		old += ignored(name)
		f.nodes[name].terminate(f.t)
		away(name)
		eventually(f.t, "others answer", func() bool { return answers.Load() > before+100 })
		f.start(name)
		f.placed("a", "b", "c")
	}
	cancel()
	asking.Wait()
	for _, name := range []string{"a", "b", "c"} {
		old += ignored(name)
	}
	f.terminate()
	return old
}

// A node that leaves answers the other nodes' requests until they ask another one: no request waits in vain for a node that has gone.
func TestLeavesAnswered(t *testing.T) {
	t.Parallel()
	f := startPlaced(t)
	var unanswered atomic.Int64
	client := func() func(int, string) bool {
		nc := dial(t, f.url)
		return func(i int, job string) bool {
			// Any node answers, and passes on requests about partitions it does not follow.
			m, err := nc.Request("carillon.api.get."+job, nil, 20*time.Second)
			if err != nil {
				t.Logf("request %d: %v", i, err)
				unanswered.Add(1)
				return false
			}
			if strings.Contains(string(m.Data), "did not answer") {
				t.Errorf("request %d: %s", i, m.Data)
				return false
			}
			return true
		}
	}
	old := f.askWhileNodesLeave([]string{"b", "c", "b"}, client, func(name string) {
		f.placed(slices.DeleteFunc([]string{"a", "b", "c"}, func(n string) bool { return n == name })...)
	})
	if n := int(unanswered.Load()); n > old {
		t.Errorf("%d requests were not answered, and no more than %d of them because they may have been old", n, old)
	}
}

// Nodes that leave answer each command that they have admitted, and nodes that come know which node to ask about partitions that they
// do not follow.
func TestAnswersThroughout(t *testing.T) {
	t.Parallel()
	f := startPlaced(t)
	client := func() func(int, string) bool {
		c := carillon.Connect(dial(t, f.url), carillon.WithTimeout(5*time.Second))
		return func(i int, job string) bool {
			_, err := c.Fire(t.Context(), job)
			switch {
			case err == nil:
				return true
			case strings.Contains(err.Error(), "the engine stops"), strings.Contains(err.Error(), "no live node follows"),
				strings.Contains(err.Error(), "was given up"):
				t.Errorf("fire %d: %v", i, err)
			default: // the machine stood still
				t.Logf("fire %d: %v", i, err)
			}
			return false
		}
	}
	f.askWhileNodesLeave([]string{"b", "c", "b", "a", "c"}, client, func(string) {})
}
