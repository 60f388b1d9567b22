package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// readCounted counts the pairs that are read by scans.
type readCounted struct {
	Table
	read int
}

func (c *readCounted) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (bool, error) {
	return c.Table.Scan(room, above, below, limit, func(key, value []byte) error {
		c.read++
		return yield(key, value)
	})
}

// A page is read while the partition waits: it costs the same whatever is in memory of what is in the table.
func TestPageIsBounded(t *testing.T) {
	const jobs, scan = 1000, 20
	for _, hot := range []int{0, 1, 500, 999, jobs} {
		f := newFeed(t)
		s := saved{m: f.m}
		var want []string
		for i := range jobs {
			want = append(want, fmt.Sprintf("job-%03d", i))
			f.put(want[i], `{"schedule":"@every 1h"}`)
		}
		if err := s.checkpoint(100); err != nil {
			t.Fatal(err)
		}
		table := &readCounted{Table: s.table.View()}
		m, err := OpenCold(f.m.layout, f.m.partition, table)
		if err != nil {
			t.Fatal(err)
		}
		for i := range hot { // here and there
			m.look(want[i*7%jobs])
		}
		if n := m.Stats().Hot; n != hot {
			t.Fatalf("%d jobs are in memory, want %d", n, hot)
		}
		var got []string
		for after, more := "", true; more; {
			var page []carillon.JobReply
			before := table.read
			page, after, more = m.Page(&carillon.ListRequest{}, after, 10, scan)
			if read := table.read - before; read > 2*scan {
				t.Fatalf("%d jobs in memory: a page behind %q read %d pairs", hot, after, read)
			}
			for i := range page {
				got = append(got, page[i].ID)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d jobs in memory: pages have %d jobs: %v", hot, len(got), got)
		}
	}
}

// A page of large jobs ends where it is full.
func TestPageFills(t *testing.T) {
	f := newFeed(t)
	const size = 300 << 10
	for i := range 20 {
		f.put(fmt.Sprintf("job-%03d", i), `{"payload":"`+strings.Repeat("x", size)+`"}`)
	}
	got := 0
	for after, more := "", true; more; {
		var page []carillon.JobReply
		page, after, more = f.m.Page(&carillon.ListRequest{}, after, 100, 200)
		if len(page) > carillon.MaxPageBytes/size+1 {
			t.Errorf("a page has %d jobs of %d bytes", len(page), size)
		}
		for i := range page {
			if want := fmt.Sprintf("job-%03d", got); page[i].ID != want {
				t.Errorf("got %s, want %s", page[i].ID, want)
			}
			got++
		}
	}
	if got != 20 {
		t.Errorf("got %d of 20 jobs", got)
	}
}
