package node_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// Pages have every job once, in order of ids over all partitions, whatever fits into one of them.
func TestListPages(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	const jobs = 200
	large, err := json.Marshal(bytes.Repeat([]byte("x"), 20_000))
	if err != nil {
		t.Fatal(err)
	}
	var all, some []string
	for i := range jobs {
		id := strconv.Itoa(i)
		all = append(all, id)
		if id[0] == '1' {
			some = append(some, id)
		}
		put(t, c, carillon.Job{ID: id, Schedule: "@every 1h", Payload: large})
	}
	slices.Sort(all)
	slices.Sort(some)
	for _, limit := range []int{1, 3, 50, 0, carillon.MaxListLimit} {
		for prefix, want := range map[string][]string{"": all, "1": some, "none": nil} {
			var got []string
			for cursor := ""; ; {
				page, err := c.ListPage(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Prefix: prefix}, Limit: limit, Cursor: cursor})
				if err != nil {
					t.Fatal(err)
				}
				if most := cmp.Or(limit, carillon.DefaultListLimit); len(page.Jobs) > most || len(page.Jobs) == 0 && page.Cursor != "" {
					t.Fatalf("limit %d, prefix %q: a page has %d jobs", limit, prefix, len(page.Jobs))
				}
				for i := range page.Jobs {
					got = append(got, page.Jobs[i].ID)
				}
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("limit %d, prefix %q: got %v", limit, prefix, got)
			}
		}
	}
}
