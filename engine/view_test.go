package engine

import (
	"fmt"
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
