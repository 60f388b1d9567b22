package engine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
)

// tableCounted counts what is asked of a table, and the pairs that are read by scans.
type tableCounted struct {
	Table
	asked, read int
}

func (c *tableCounted) Get(room byte, key []byte) ([]byte, bool, error) {
	c.asked++
	return c.Table.Get(room, key)
}

func (c *tableCounted) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (bool, error) {
	c.asked++
	return c.Table.Scan(room, above, below, limit, func(key, value []byte) error {
		c.read++
		return yield(key, value)
	})
}

// The partition waits while a page is read. So a page costs the same however many of the table's jobs are in memory.
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
		table := &tableCounted{Table: s.table.View()}
		m, err := OpenCold(f.m.layout, f.m.partition, table)
		if err != nil {
			t.Fatal(err)
		}
		for i := range hot { // spread over all ids
			m.lookUp(want[i*7%jobs])
		}
		if n := m.Stats().Hot; n != hot {
			t.Fatalf("%d jobs are in memory, want %d", n, hot)
		}
		var got []string
		for after, more := "", true; more; {
			var page []carillon.JobReply
			before := table.read
			page, after, more = m.Page(&carillon.ListRequest{}, after, 10, scan, nil)
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

// Pages leave out no job, also where the table still has jobs that were deleted, and where an id is the prefix that is looked for.
func TestPageAfterDeletes(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("job-%03d", i))
		f.put(want[i], `{"schedule":"@every 1h"}`)
	}
	m := s.opened(t)["cold"]
	f.m = m
	for _, id := range want[:10] {
		if err := f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: id}); err != nil {
			t.Fatal(err)
		}
	}
	m.lookUp(want[45])
	var got []string
	for after, more := "", true; more; {
		var page []carillon.JobReply
		page, after, more = m.Page(&carillon.ListRequest{}, after, 20, 20, nil)
		for i := range page {
			got = append(got, page[i].ID)
		}
	}
	if !slices.Equal(got, want[10:]) {
		t.Errorf("pages have %d jobs: %v", len(got), got)
	}
	if page, _, _ := m.Page(&carillon.ListRequest{Selection: carillon.Selection{Prefix: want[20]}}, "", 20, 20, nil); len(page) != 1 || page[0].ID != want[20] {
		t.Errorf("of %s is listed %+v", want[20], page)
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
		page, after, more = f.m.Page(&carillon.ListRequest{}, after, 100, 200, nil)
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

// heavy are headers and labels, as many and as long as a job may have, in the JSON of a put.
func heavy() string {
	var headers, labels []string
	for i := range carillon.MaxHeaders { // there may be as many labels
		headers = append(headers, fmt.Sprintf(`"H-%02d":"%0*d"`, i, carillon.MaxHeaderBytes/carillon.MaxHeaders-4, i))
		labels = append(labels, fmt.Sprintf(`"%0*d":"%0*d"`, carillon.MaxLabelLength, i, carillon.MaxLabelLength, i))
	}
	return `"headers":{` + strings.Join(headers, ",") + `},"labels":{` + strings.Join(labels, ",") + `}`
}

// So does one of jobs that are large without a payload, and no more of them are read ahead.
func TestPageFillsWithHeaders(t *testing.T) {
	const jobs = 100
	const most = carillon.MaxPageBytes / (carillon.MaxHeaderBytes + carillon.MaxLabels*2*carillon.MaxLabelLength)
	f := newFeed(t)
	s := saved{m: f.m}
	for i := range jobs {
		f.put(fmt.Sprintf("job-%03d", i), `{"schedule":"@every 1h",`+heavy()+`}`)
	}
	if err := s.checkpoint(100); err != nil {
		t.Fatal(err)
	}
	cold, err := OpenCold(f.m.layout, f.m.partition, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	list := &carillon.ListRequest{}
	read := cold.ReadAhead()
	if err := errors.Join(read.Scan(s.table.View(), list, "", jobs), read.Read(s.table.View(), cold.Cold(read.IDs()))); err != nil {
		t.Fatal(err)
	}
	if len(read.jobs) != most {
		t.Errorf("%d jobs were read ahead, want %d", len(read.jobs), most)
	}
	for name, page := range map[string]func() ([]carillon.JobReply, string, bool){
		"in memory":      func() ([]carillon.JobReply, string, bool) { return f.m.Page(list, "", jobs, jobs, nil) },
		"from the table": func() ([]carillon.JobReply, string, bool) { return cold.Page(list, "", jobs, jobs, nil) },
		"read ahead":     func() ([]carillon.JobReply, string, bool) { return cold.Page(list, "", jobs, jobs, read) },
	} {
		found, last, more := page()
		if len(found) != most || !more || last != fmt.Sprintf("job-%03d", most-1) {
			t.Errorf("%s: %d jobs up to %s, %v; want %d", name, len(found), last, more, most)
		}
	}
}

// A job's JSON is longer than SpecBytes says, so that what is read for a page fills it; of a large job not by much.
func TestSpecBytes(t *testing.T) {
	f := newFeed(t)
	for i, c := range []struct {
		body  string
		large bool
	}{
		{`{}`, false},
		{`{"schedule":"@every 1h","topic":"a","owner":"o","zone":"UTC"}`, false},
		{`{"schedule":"0 9 * * *","zone":"Europe/Paris","topic":"a.b.c.d"}`, false},
		{`{"headers":{"a":"b"}}`, false},
		{`{"headers":{"a":"","b":""},"labels":{"a":"","b":"","c":""}}`, false},
		{`{` + heavy() + `}`, true},
		{`{"payload":"` + strings.Repeat("x", 1000) + `",` + heavy() + `}`, true},
		{`{"payload_text":"` + strings.Repeat("x", 100<<10) + `"}`, true},
		{`{"payload_text":"` + strings.Repeat(`\u0001`, 100<<10) + `"}`, false},
		{`{"payload_base64":"` + strings.Repeat("AAAA", 100<<10) + `"}`, false},
	} {
		id := fmt.Sprint(i)
		f.put(id, c.body)
		j, ok := f.m.Job(id, nil)
		json, memory := SpecBytes(&j.Spec)
		whole := len(j.AppendJSON(nil))
		if !ok || json >= whole || c.large && json < whole-whole/50 {
			t.Errorf("%.60s: %d bytes of JSON, want somewhat less than %d", c.body, json, whole)
		}
		if want := json + (len(j.Spec.Headers)+len(j.Spec.Labels))*(entryBytes-6); memory != want {
			t.Errorf("%.60s: %d bytes of memory, want %d", c.body, memory, want)
		}
	}
}

// The partition waits while a page is read, so the payloads of jobs that the list does not take are not copied, in memory or read ahead. Nor
// is more read ahead than fits on the page.
func TestPageCopiesWhatItTakes(t *testing.T) {
	const jobs, size = 20, 100 << 10
	f := newFeed(t)
	s := saved{m: f.m}
	for i := range jobs { // half of them come to share a template
		topic, label := "shared", "all"
		if i%2 == 0 {
			topic, label = fmt.Sprintf("own.%d", i), fmt.Sprint(i)
		}
		f.put(fmt.Sprintf("job-%03d", i), fmt.Sprintf(`{"schedule":"@every 1h","topic":%q,"owner":"o","labels":{"l":%q},"payload":"%0*d"}`, topic, label, size, i))
	}
	if err := s.checkpoint(100); err != nil {
		t.Fatal(err)
	}
	cold, err := OpenCold(f.m.layout, f.m.partition, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	page := func(m *Machine, list *carillon.ListRequest, read *ReadAhead) (ids []string, copied uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		found, _, _ := m.Page(list, "", jobs, jobs, read)
		runtime.ReadMemStats(&after)
		for i := range found {
			ids = append(ids, found[i].ID)
			if n := len(found[i].Spec.Payload); n != size+2 {
				t.Errorf("%s has %d bytes of payload", found[i].ID, n)
			}
		}
		return ids, after.TotalAlloc - before.TotalAlloc
	}
	for _, c := range []struct {
		list carillon.ListRequest
		want []string
	}{
		{carillon.ListRequest{Topic: "none"}, nil},
		{carillon.ListRequest{Topic: "own.4"}, []string{"job-004"}},
		{
			carillon.ListRequest{Topic: "shared", Selection: carillon.Selection{Prefix: "job-00", Label: "l=all", Owner: "o"}},
			[]string{"job-001", "job-003", "job-005", "job-007", "job-009"},
		},
		{carillon.ListRequest{Selection: carillon.Selection{Label: "l=6"}}, []string{"job-006"}},
		{carillon.ListRequest{Selection: carillon.Selection{Owner: "nobody"}}, nil},
		{carillon.ListRequest{Status: carillon.StatusPaused}, nil},
		{carillon.ListRequest{}, []string{"job-000", "job-001", "job-002", "job-003", "job-004", "job-005"}}, // they fill the page
	} {
		read := cold.ReadAhead()
		if err := errors.Join(read.Scan(s.table.View(), &c.list, "", jobs), read.Read(s.table.View(), cold.Cold(read.IDs()))); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, j := range read.jobs {
			kept += len(j.spec)
		}
		most := (2*len(c.want) + 1) * size
		if kept > most {
			t.Errorf("%+v: %d bytes were read ahead for %d jobs", c.list, kept, len(c.want))
		}
		for name, from := range map[string]struct {
			m    *Machine
			read *ReadAhead
		}{"in memory": {f.m, nil}, "read ahead": {cold, read}} {
			ids, copied := page(from.m, &c.list, from.read)
			if !slices.Equal(ids, c.want) || copied > uint64(most) {
				t.Errorf("%s, %+v: %v, want %v; %d bytes were copied", name, c.list, ids, c.want, copied)
			}
		}
		if ids, _ := page(cold, &c.list, nil); !slices.Equal(ids, c.want) {
			t.Errorf("from the table, %+v: %v, want %v", c.list, ids, c.want)
		}
	}
}

// Commands that come one after the other for one job share the payload of their outcomes: a copy for each would take gigabytes, and the
// partition waits for it. A tick lets go of it.
func TestOutcomesShareThePayload(t *testing.T) {
	f := newFeed(t)
	payload := func(id string) *byte {
		t.Helper()
		job, ok := f.m.Job(id, nil)
		if !ok || len(job.Spec.Payload) != 100<<10 || string(job.Spec.Payload[1:len(id)+1]) != id {
			t.Fatalf("%s: %v, %.20s", id, ok, job.Spec.Payload)
		}
		return &job.Spec.Payload[0]
	}
	put := func(id, schedule string) {
		t.Helper()
		f.put(id, fmt.Sprintf(`{"schedule":%q,"payload":"%s%0*d"}`, schedule, id, 100<<10-len(id)-2, 0))
	}
	put("a", "@every 1h")
	for i := range 8 { // some have a template in common
		put(fmt.Sprint("b", i), "@every 1h")
	}
	for _, id := range []string{"a", "b7"} {
		was := payload(id)
		for _, kind := range []Kind{KindPause, KindResume} {
			f.apply(&Entry{Kind: kind, Job: id})
			if payload(id) != was {
				t.Errorf("%s: each outcome has a copy", id)
			}
		}
		put(id, "@every 2h")
		if payload(id) == was {
			t.Errorf("%s: another put has the payload of the one before", id)
		}
	}
	other := payload("b6")
	if payload("b7") == other {
		t.Error("two jobs share a payload")
	}
	last := payload("b7")
	f.tick(0)
	if payload("b7") == last {
		t.Error("a tick does not let go of it")
	}
	var pack []PackedJob // all of one put
	for _, id := range []string{"c0", "c1", "c2"} {
		body := fmt.Sprintf(`"%s%0*d"`, id, 100<<10-len(id)-2, 0)
		pack = append(pack, Pack(&carillon.Job{ID: id, Payload: []byte(body), Form: carillon.PayloadJSON}, nil, ""))
	}
	f.apply(&Entry{Kind: KindImport, Pack: pack})
	for _, id := range []string{"c0", "c1", "c2", "c1", "c0"} {
		payload(id)
	}
}

// If jobs were read ahead, the machine does not read its table; and it no longer trusts what was read once that is old.
func TestReadAhead(t *testing.T) {
	const jobs, scan = 50, 20
	f := newFeed(t)
	s := saved{m: f.m}
	for i := range jobs {
		f.put(fmt.Sprintf("job-%03d", i), `{"schedule":"@every 1h"}`)
	}
	if err := s.checkpoint(100); err != nil {
		t.Fatal(err)
	}
	table := &tableCounted{Table: s.table.View()}
	m, err := OpenCold(f.m.layout, f.m.partition, table)
	if err != nil {
		t.Fatal(err)
	}
	m.Attach(table)
	f.m, s.m = m, m
	all := &carillon.ListRequest{}
	ahead := func() *ReadAhead {
		a := m.ReadAhead()
		if err := a.Scan(s.table.View(), all, "", scan); err != nil {
			t.Fatal(err)
		}
		if err := a.Read(s.table.View(), append(m.Cold(a.IDs()), "none")); err != nil {
			t.Fatal(err)
		}
		return a
	}
	versions := func(a *ReadAhead) (told []string) {
		page, last, more := m.Page(all, "", scan, scan, a)
		for i := range page {
			told = append(told, fmt.Sprintf("%s %d", page[i].ID, page[i].Version))
		}
		one, ok := m.Job("job-003", a)
		none, is := m.Job("none", a)
		return append(told, fmt.Sprint(last, more, one.Version, ok, none.Version, is))
	}
	a := ahead()
	before := table.asked
	got := versions(a)
	if table.asked != before {
		t.Errorf("the machine asked its table %d times for what was read ahead", table.asked-before)
	}
	if want := versions(nil); fmt.Sprint(got) != fmt.Sprint(want) || len(got) != scan+1 {
		t.Errorf("got %v, want %v", got, want)
	}
	if table.asked == before {
		t.Error("without that, it did not ask either")
	}

	// Jobs that changed meanwhile are in memory, and memory knows which were removed.
	f.put("job-003", `{"schedule":"@every 2h"}`)
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "job-004"})
	f.put("none", `{"schedule":"@every 2h"}`)
	changed := versions(nil)
	if got := versions(a); fmt.Sprint(got) != fmt.Sprint(changed) {
		t.Errorf("after changes: got %v, want %v", got, changed)
	}
	// Then a checkpoint has the changes, and they leave memory: what was read ahead is out of date.
	if err := s.checkpoint(200); err != nil {
		t.Fatal(err)
	}
	table.Table = s.table.View()
	m.Shrink(Key{})
	for m.ContinueShrink(100) || m.EvictCommitted(100) {
	}
	if cold := m.Cold([]string{"job-003", "job-004", "none"}); len(cold) != 3 {
		t.Fatalf("only %v left memory", cold)
	}
	now := versions(nil)
	if got := versions(a); fmt.Sprint(got) != fmt.Sprint(now) {
		t.Errorf("after a checkpoint: got %v, want %v", got, now)
	}
	before = table.asked
	if got := versions(ahead()); fmt.Sprint(got) != fmt.Sprint(now) || table.asked != before {
		t.Errorf("read ahead again: got %v, want %v; the table was asked %d times", got, now, table.asked-before)
	}
}

// What is told of a job that was resumed, and whose missed fires have yet to be counted, is the same whether it is in memory or not.
func TestViewOfResumed(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.m.Attach(s.table.View())
	f.tick(1)
	jobs := map[string]string{
		"every":  `{"schedule":"@every 10s"}`,
		"spread": `{"schedule":"@every 10s","spread":"7s"}`,
		"cron":   `{"schedule":"30 * * * *","zone":"Asia/Kathmandu"}`,
		"ended":  `{"schedule":"@every 20s","end":"2026-01-01T00:00:30Z"}`,
	}
	for job, body := range jobs {
		f.put(job, body)
		f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: job})
	}
	f.now += time.Hour.Milliseconds() + 61_000 // without ticks
	for job := range jobs {
		f.apply(&Entry{Kind: KindResume, Verb: "resume", Job: job})
	}
	told := func() map[string]string {
		all := make(map[string]string)
		for job := range jobs {
			r, ok := f.m.Job(job, nil)
			if !ok || !r.Next.IsZero() && r.Next.UnixMilli() <= f.now || r.Next.IsZero() != (job == "ended") {
				t.Errorf("%s fires next at %s, and it is %s", job, r.Next, time.UnixMilli(f.now).UTC())
			}
			all[job] = string(r.AppendJSON(nil))
		}
		return all
	}
	hot := told()
	s.evictAll(t)
	f.m.Shrink(Key{})
	for f.m.ContinueShrink(100) || f.m.EvictCommitted(100) {
	}
	f.apply(&Entry{Kind: KindDisk, Disk: Disk{Epoch: 1}}) // before a record, jobs leave that were looked up for the one before
	if n := f.m.Stats().Hot; n != 0 {
		t.Fatalf("%d jobs are in memory", n)
	}
	if d := cmp.Diff(hot, told()); d != "" {
		t.Error(d)
	}
}

// A job is ready, and its next fire is after the time that ticks have reached: the tick that counted some of its missed fires was made before
// the job was resumed. A start that leaves jobs on disk finds it all the same.
func TestReadyAheadOfTicks(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.m.Attach(s.table.View())
	f.tick(100)
	f.put("j", `{"schedule":"* * * * * *"}`)
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "j"})
	f.now += countSteps*1000 + 300
	f.apply(&Entry{Kind: KindResume, Verb: "resume", Job: "j"})
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now - 400, Epoch: 1, Limit: 1}}})
	if _, j := f.m.jobs.find("j"); j.place != inReady || j.next <= f.m.to {
		t.Fatalf("it is to fire at %d, and ticks have reached %d", j.next, f.m.to)
	}
	if err := s.checkpoint(100); err != nil {
		t.Fatal(err)
	}
	cold, err := OpenCold(oneOfOne, 0, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	f.now += 2000
	f.tick(100)
	e := &Entry{Seq: f.seq, Time: f.now, Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Limit: 100}}}
	if _, err := cold.Apply(e); err != nil || cold.Made() != f.m.Made() || cold.digest != f.m.digest {
		t.Errorf("it made %d outputs of %d: %v", cold.Made(), f.m.Made(), err)
	}
}

// Nor does a job whose turn is ready within a tick's lead, ahead of all records.
func TestReadyAheadOfRecords(t *testing.T) {
	f := newFeed(t)
	f.put("i", `{"schedule":"@in 5ms"}`)
	f.put("j", `{"schedule":"@in 5ms"}`)
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now + 10, Epoch: 1, Limit: 1}}})
	s := saved{m: f.m}
	for what, m := range s.opened(t) {
		g := feed{t: t, m: m, seq: f.seq, now: f.now}
		if n := g.tick(100); n != 1 {
			t.Errorf("%s: %d outputs after the first", what, n)
		}
	}
}

// How large outputs can be is known of fires with a payload of their own, and of jobs that are on disk it is not less than it can be.
func TestLargestOutput(t *testing.T) {
	const large = 64 << 10
	text := strings.Repeat("x", large)
	f := newFeed(t)
	s := saved{m: f.m}
	f.m.Attach(s.table.View())
	f.put("small", `{}`)
	if n := f.m.LargestOutput(f.now); n > 1000 {
		t.Errorf("%d bytes for a job without a payload", n)
	}
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "small", Body: []byte(`{"payload_text":"` + text + `"}`)})
	if n := f.m.LargestOutput(f.now); n < large {
		t.Errorf("%d bytes for a fire of %d", n, large)
	}
	f.tick(1)
	f.tick(0)
	f.put("large", `{"schedule":"@in 1h","payload_text":"`+text+`"}`)
	if err := s.checkpoint(100); err != nil {
		t.Fatal(err)
	}
	cold, err := OpenCold(oneOfOne, 0, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	if n := cold.LargestOutput(f.now); n < large {
		t.Errorf("%d bytes where a job of %d is on disk", n, large)
	}
	if n := open(t, f.m, s.table.View()).LargestOutput(f.now); n < large {
		t.Errorf("%d bytes where a job of %d is in memory", n, large)
	}
}
