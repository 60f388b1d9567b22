package node_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
)

// stalling is the file system of a disk on which reads of tables wait while it stands still.
type stalling struct {
	vfs.FS
	mu sync.RWMutex // locked while it stands still
}

func newStalling() *stalling {
	s := &stalling{}
	s.FS = faultfs.Wrap(vfs.Default, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") {
			s.mu.RLock()
			defer s.mu.RUnlock()
		}
		return nil
	})
	return s
}

// While requests for jobs on disk wait for a disk that stands still, jobs in memory fire.
func TestAskedWhileDiskStands(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery, o.HotJobs = time.Millisecond, 1 // so a start reads none of the jobs that are due in the far future
	r := run(t, o)
	c := client(t, r.NATS)
	put(t, c, beat)
	beatIn := partitionOfBeat(t, c)
	random := make([]byte, 3000) // so that they take many blocks of a file
	var far []string
	for i := range 100 {
		if _, err := rand.Read(random); err != nil {
			t.Fatal(err)
		}
		payload, err := json.Marshal(random)
		if err != nil {
			t.Fatal(err)
		}
		far = append(far, in(beatIn, fmt.Sprintf("far%02d", i)))
		put(t, c, carillon.Job{ID: far[i], Schedule: "@every 8000h", Payload: payload})
	}
	twoCheckpoints(t, c, "a")
	r.stop(t)

	disk := newStalling()
	o.JobStore.FS, o.CheckpointEvery = disk, 0
	r = run(t, o)
	nc := dial(t, r.NATS)
	c = carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	beats(t, c, 1)
	get := func() error {
		_, err := c.Get(t.Context(), far[50])
		return err
	}
	list := func() error {
		page, err := c.ListPage(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Prefix: "far"}, Limit: carillon.MaxListLimit})
		if err == nil && len(page.Jobs) != len(far) {
			err = fmt.Errorf("got %d jobs", len(page.Jobs))
		}
		return err
	}
	for _, q := range []struct {
		how string
		ask func() error
	}{{"get", get}, {"list", list}} { // in this order, because the list leaves all of them in the cache
		answered := make(chan error, 1)
		func() {
			disk.mu.Lock()
			defer disk.mu.Unlock()
			go func() { answered <- q.ask() }()
			beats(t, c, 20)
			if len(answered) > 0 {
				t.Errorf("%s: the answer did not wait for the disk", q.how)
			}
		}()
		if err := <-answered; err != nil {
			t.Errorf("%s: %v", q.how, err)
		}
	}
	unbroken(t, nc, c)
	r.stop(t)
}
