package node_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// Nodes that leave answer each command that they have admitted, and nodes that come know which node to ask about partitions that they
// do not follow. The client does not repeat a fire, so each failure shows.
func TestAnswersThroughout(t *testing.T) {
	t.Parallel()
	f, nc, placed, ids := startPlaced(t)
	c := client(t, f.url)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var answers atomic.Int64
	for i := range 8 {
		c := carillon.Connect(dial(t, f.url), carillon.WithTimeout(5*time.Second))
		asking.Go(func() {
			for ; ctx.Err() == nil; i++ {
				_, err := c.Fire(t.Context(), ids[i%len(ids)])
				switch {
				case err == nil:
					answers.Add(1)
				case strings.Contains(err.Error(), "the engine stops"), strings.Contains(err.Error(), "no live node follows"),
					strings.Contains(err.Error(), "was given up"):
					t.Errorf("fire %d: %v", i, err)
				default: // the machine stood still
					t.Logf("fire %d: %v", i, err)
				}
			}
		})
	}
	for _, leaves := range []string{"b", "c", "b", "a", "c"} {
		before := answers.Load()
		f.nodes[leaves].terminate(t)
		eventually(t, "others answer", func() bool { return answers.Load() > before+100 })
		f.start(leaves)
		f.placed(c, nc, placed, "a", "b", "c")
	}
	cancel()
	asking.Wait()
	f.terminate()
}
