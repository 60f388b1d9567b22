package node_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// Pages have every job once, in order of ids over all partitions, however many fit into one page.
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
	// A cursor that was damaged on the way is an error, not the end of the list.
	for _, cursor := range []string{"!!", "xyz", "MTk5AA"} {
		page, err := c.ListPage(t.Context(), carillon.ListRequest{Cursor: cursor})
		if !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidField}) {
			t.Errorf("cursor %s: %d jobs, %v", cursor, len(page.Jobs), err)
		}
	}
}

// A filter that hardly any job matches is answered in pages that may be empty. Together they have every matching job once.
func TestListFew(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	const jobs, each = 150_000, 60_000
	var want []string
	rare := func(yield func(carillon.ImportJob) bool) {
		for i := range jobs {
			j := carillon.ImportJob{Job: carillon.Job{ID: fmt.Sprintf("job-%06d", i), Schedule: "@every 24h"}}
			if i%each == each-1 {
				j.Job.Owner = "rare"
				want = append(want, j.Job.ID)
			}
			if !yield(j) {
				return
			}
		}
	}
	err := c.Import(t.Context(), rare, func(i int, err error) {
		if err != nil {
			t.Errorf("job %d: %v", i, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	pages, cursor := 0, ""
	for ; pages == 0 || cursor != ""; pages++ {
		page, err := c.ListPage(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Owner: "rare"}, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Jobs {
			got = append(got, page.Jobs[i].ID)
		}
		cursor = page.Cursor
	}
	if !slices.Equal(got, want) || pages < 2 {
		t.Errorf("%d pages have %v, want %v", pages, got, want)
	}
}

// If the job table cannot be read, neither a list nor a selection looks complete.
func TestListUnreadable(t *testing.T) {
	t.Parallel()
	r := run(t, unreadable(t))
	c := carillon.Connect(dial(t, r.NATS), carillon.WithTimeout(time.Second))
	far := carillon.Selection{Prefix: "far"}
	for how, ask := range map[string]func() error{
		"list":      func() error { _, err := c.ListPage(t.Context(), carillon.ListRequest{Selection: far}); return err },
		"selection": func() error { _, err := c.PauseWhere(t.Context(), far); return err },
	} {
		if err := ask(); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
			t.Errorf("%s: %v", how, err)
		} else {
			words(t, err, "the jobs of partition 1 cannot be read")
		}
	}
}

// What a page costs depends on what it holds, and not on how large the jobs are that follow.
func TestListCost(t *testing.T) {
	r := run(t, base(t)) // not in parallel: all that the process allocates counts
	c := client(t, r.NATS)
	large, err := json.Marshal(strings.Repeat("x", 500<<10))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		put(t, c, carillon.Job{ID: "large" + strconv.Itoa(i), Schedule: "@every 1h", Payload: large})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	page, err := c.ListPage(t.Context(), carillon.ListRequest{Limit: carillon.MaxListLimit})
	if err != nil || len(page.Jobs) == 0 {
		t.Fatal(page, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
		t.Errorf("a page of %d jobs took %d MiB", len(page.Jobs), took>>20)
	}
}
