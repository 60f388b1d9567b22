package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// importLines sends an import as any NATS client would, until its outcome is known.
func importLines(t testing.TB, nc *nats.Conn, request string, lines ...string) carillon.ImportReply {
	t.Helper()
	m := nats.NewMsg("carillon.api.import")
	m.Data = []byte(strings.Join(lines, "\n"))
	if request == "" {
		request = nuid.Next()
	}
	m.Header.Set(carillon.HeaderRequest, request)
	var r carillon.ImportReply
	eventually(t, "an import is answered", func() bool {
		answer, err := nc.RequestMsg(m, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Header.Get(micro.ErrorHeader) == string(carillon.CodeUnavailable) {
			return false // to send the same request again does no harm
		}
		if r, err = carillon.ParseImportReply(answer.Data); err != nil {
			t.Fatalf("%v: %s", err, answer.Data)
		}
		return true
	})
	return r
}

// packsOf counts the import records in the log, and the jobs in them.
func packsOf(t testing.TB, nc *nats.Conn) (records, jobs int) {
	t.Helper()
	stream, err := jetStream(t, nc).Stream(t.Context(), carillon.DefaultNames().LogStream())
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(m.Subject, ".import") {
			continue
		}
		pack, err := engine.DecodePack(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		records, jobs = records+1, jobs+len(pack)
	}
	return records, jobs
}

func TestImport(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	lines := []string{
		`{"id":"flat","schedule":"@every 1h","payload":{"a": 1}}`,
		`{"id":"export","spec":{"schedule":"@in 1ms"},"status":"scheduled","type":"carillon.v1.job","version":9}`,
		`{"id":"over","spec":{"schedule":"@in 1ms"},"status":"completed"}`,
		`{"id":"still","spec":{"schedule":"@in 1ms"},"status":"paused"}`,
		``,
		`{"id":"bad","schedule":"nonsense"}`,
		`{"id":"no.id"}`,
		`{`,
		`{"id":"late","schedule":"@daily","end":"2020-01-01T00:00:00Z"}`,
		`{"id":"accepted","spec":{},"state":{"accepted":"2500-01-01T00:00:00.001Z"}}`,
		`{"id":"from","spec":{},"state":{"from":"3000-01-01T00:00:00Z"}}`,
		`{"id":"last","spec":{},"state":{"last":"9999-12-31T23:59:59.999Z"}}`,
		`{"id":"since","spec":{"schedule":"@in 1h"},"state":{"version":3,"from":"2026-12-01T00:00:00Z"}}`,
		`{"id":"upto","spec":{"schedule":"@in 1h"},"state":{"version":3,"accepted":"2026-12-01T00:00:00Z"}}`,
		`{"id":"version","spec":{},"state":{"version":4503599627370497}}`,
		`{"id":"fires","spec":{},"state":{"fires":9007199254740991}}`,
		`{"id":"skipped","spec":{},"state":{"skipped":9007199254740991}}`,
		"{\"id\":\"space\"}\u00a0", // which is no white space in JSON
	}
	got := importLines(t, nc, "r", lines...)
	codes, fields, ids := map[int]carillon.Code{}, map[int]string{}, map[int]string{}
	var order []int
	for _, f := range got.Failed {
		codes[f.Line], fields[f.Line], ids[f.Line] = f.Error.Code, f.Error.Field, f.ID
		order = append(order, f.Line)
	}
	if got.Imported != 3 || got.Unchanged != 0 || got.LeftOut != 1 || !slices.Equal(order, []int{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}) {
		t.Errorf("%+v", got)
	}
	for line, want := range map[int]carillon.Code{
		6: carillon.CodeInvalidSchedule, 7: carillon.CodeInvalidJobID, 8: carillon.CodeInvalidJSON, 9: carillon.CodeInvalidField,
		10: carillon.CodeInvalidField, 11: carillon.CodeInvalidField, 12: carillon.CodeInvalidField,
		13: carillon.CodeInvalidField, 14: carillon.CodeInvalidField, 15: carillon.CodeInvalidField,
		16: carillon.CodeInvalidField, 17: carillon.CodeInvalidField, 18: carillon.CodeInvalidJSON,
	} {
		if codes[line] != want {
			t.Errorf("line %d: %s, not %s", line, codes[line], want)
		}
	}
	for line, want := range map[int]string{6: "schedule", 7: "id", 8: "", 9: "end", 10: "accepted", 11: "from", 12: "last", 13: "accepted", 14: "from", 15: "version", 16: "fires", 17: "skipped"} {
		if fields[line] != want {
			t.Errorf("line %d: field %q, not %q", line, fields[line], want)
		}
	}
	for line, want := range map[int]string{6: "bad", 8: "", 9: "late", 10: "accepted"} {
		if ids[line] != want {
			t.Errorf("line %d: id %q, not %q", line, ids[line], want)
		}
	}
	fired := func(version uint64) {
		t.Helper()
		eventually(t, "what was imported fires", func() bool {
			job, err := c.Get(t.Context(), "export")
			return err == nil && job.Status == carillon.StatusCompleted && job.Version == version
		})
	}
	fired(1)
	if again := importLines(t, nc, "r", lines...); again.Imported != 0 || again.Unchanged != 3 {
		t.Errorf("the same request again: %+v", again)
	}
	if other := importLines(t, nc, "", lines...); other.Imported != 1 || other.Unchanged != 2 {
		t.Errorf("the same jobs in another request, one of them completed: %+v", other)
	}
	fired(2)
	if job, err := c.Get(t.Context(), "still"); err != nil || job.Status != carillon.StatusPaused || job.Version != 1 {
		t.Errorf("%+v, %v", job, err)
	}
	if job, err := c.Get(t.Context(), "flat"); err != nil || string(job.Spec.Payload) != `{"a": 1}` {
		t.Errorf("%+v, %v", job, err)
	}

	longest := strings.Repeat("r", 120)
	if r := importLines(t, nc, longest, lines[0]); r.Unchanged != 1 {
		t.Errorf("a request of 120 bytes: %+v", r)
	}
	m := nats.NewMsg("carillon.api.import")
	m.Data = []byte(lines[0])
	m.Header.Set(carillon.HeaderRequest, longest+"r")
	if answer, err := nc.RequestMsg(m, time.Minute); err != nil || !errors.Is(carillon.ParseError(answer.Data), &carillon.Error{Code: carillon.CodeInvalidField, Field: carillon.HeaderRequest}) {
		t.Errorf("a request of 121 bytes: %v", err)
	}

	// So many lines and bytes are taken, and not one more, unless there is one line.
	long := `{"id":"long","payload":"` + strings.Repeat("x", carillon.MaxPayload-2) + `"}`
	for name, c := range map[string]struct {
		body  string
		taken bool
	}{
		"as many lines":         {strings.Repeat("\n", carillon.MaxImportLines-1) + "{", true},
		"a line more":           {strings.Repeat("\n", carillon.MaxImportLines) + "{", false},
		"as many bytes":         {"\n{" + strings.Repeat(" ", carillon.MaxImportBytes-3) + "{", true},
		"a byte more":           {"\n{" + strings.Repeat(" ", carillon.MaxImportBytes-2) + "{", false},
		"one line":              {long, true},
		"that line and another": {long + "\n{", false},
	} {
		answer, err := nc.Request("carillon.api.import", []byte(c.body), 10*time.Second)
		if err != nil || errors.Is(carillon.ParseError(answer.Data), &carillon.Error{Code: carillon.CodeLimitExceeded}) == c.taken {
			t.Errorf("%s: %v %.200s", name, err, answer.Data)
		}
	}
	unbrokenLog(t, r)
}

// unbrokenLog restarts a node and checks that its jobs are the same as before.
func unbrokenLog(t testing.TB, r *running) {
	t.Helper()
	list := func(c *carillon.Client) (all []string) {
		for job, err := range c.List(t.Context(), carillon.ListRequest{}) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(job.ID, job.Version, job.Status, job.Next, string(job.Spec.AppendJSON(nil))))
		}
		return all
	}
	before := list(client(t, r.NATS))
	r.stop(t)
	o := base(t)
	o.Data = r.data
	again := run(t, o)
	if after := list(client(t, again.NATS)); !slices.Equal(before, after) || len(after) == 0 {
		t.Errorf("after a restart there are %d jobs, not %d", len(after), len(before))
	}
	again.stop(t)
}

// However much of its lines an import's answer quotes, it is no larger than every server's max_payload.
func TestImportAnswerFits(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	line := `{"id":"` + strings.Repeat("a", carillon.MaxJobIDLength) + `","schedule":"` + strings.Repeat(`\"`, 150) + ` * * * *"}`
	answer, err := nc.Request("carillon.api.import", []byte(strings.Repeat(line+"\n", carillon.MaxImportLines)), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := carillon.ParseImportReply(answer.Data)
	if err != nil || len(answer.Data) > 768<<10 || len(reply.Failed) != carillon.MaxImportLines {
		t.Errorf("%d bytes, %d lines, %v", len(answer.Data), len(reply.Failed), err)
	}
	for _, f := range reply.Failed {
		if f.Error.Code != carillon.CodeInvalidSchedule || f.Error.Field != "schedule" || !strings.HasPrefix(f.Error.Message, "minute ") {
			t.Fatalf("line %d: %v", f.Line, f.Error)
		}
	}
}

// The Go client's import: many requests under way, large jobs and bad ones among small ones.
func TestClientImport(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	// A request that is not answered in time is sent again, and is in the log twice. On a busy machine answers take long.
	c := carillon.Connect(nc, carillon.WithTimeout(10*time.Minute))
	const n = 20_000
	large := bytes.Repeat([]byte("x"), carillon.MaxPayload)
	job := func(i int) carillon.ImportJob {
		j := carillon.ImportJob{Job: carillon.Job{ID: fmt.Sprint("job-", i), Schedule: "@every 1h", Payload: []byte(`"` + strings.Repeat("y", 100) + `"`)}, Paused: i%10 == 3}
		switch i {
		case 7000, 7001:
			j.Job.Payload, j.Job.Form = large, carillon.PayloadBase64
		case 8000:
			j.Job.Schedule = "nonsense"
		case 9000:
			j.Job.ID = "no id"
		}
		return j
	}
	seen := make([]int, n)
	failed := map[int]carillon.Code{}
	jobs := func(yield func(carillon.ImportJob) bool) {
		for i := range n {
			if !yield(job(i)) {
				return
			}
		}
	}
	err := c.Import(t.Context(), jobs, func(i int, err error) {
		if seen[i]++; err != nil {
			failed[i] = carillon.AsError(err).Code
		}
	})
	if err != nil || len(failed) != 2 || failed[8000] != carillon.CodeInvalidSchedule || failed[9000] != carillon.CodeInvalidJobID {
		t.Errorf("%v, failed: %v", err, failed)
	}
	for i, times := range seen {
		if times != 1 {
			t.Fatalf("job %d was reported %d times", i, times)
		}
	}
	total, paused := 0, 0
	for got, err := range c.List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if _, err := fmt.Sscanf(got.ID, "job-%d", &i); err != nil {
			t.Fatal(err)
		}
		want := job(i)
		if total++; got.Version != 1 || !bytes.Equal(got.Spec.Payload, want.Job.Payload) || (got.Status == carillon.StatusPaused) != want.Paused {
			t.Fatalf("%s: version %d, %s", got.ID, got.Version, got.Status)
		}
		if want.Paused {
			paused++
		}
	}
	if total != n-2 || paused != n/10 {
		t.Errorf("%d jobs, %d paused", total, paused)
	}
	if records, packed := packsOf(t, nc); packed != n-2 || records > n/20 {
		t.Errorf("%d jobs came in %d records", packed, records)
	}
	r.stop(t)
}

// Puts that come faster than the log acknowledges them get an answer each, and take effect in the order in which they were sent.
func TestPutsInOrder(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	const jobs, rounds = 40, 50
	type answer struct {
		*nats.Msg
		job string
		n   int
	}
	answers := make(chan answer, jobs*rounds)
	var sent sync.WaitGroup
	inbox := nc.NewRespInbox()
	sub, err := nc.Subscribe(inbox+".*", func(m *nats.Msg) {
		var job, n int
		if _, err := fmt.Sscanf(m.Subject[len(inbox):], ".%d-%d", &job, &n); err != nil {
			t.Error(err)
		}
		answers <- answer{m, fmt.Sprint("t-", job), n}
		sent.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for n := range rounds {
		for job := range jobs {
			sent.Add(1)
			m := nats.NewMsg(fmt.Sprintf("carillon.api.put.t-%d", job))
			m.Reply = fmt.Sprintf("%s.%d-%d", inbox, job, n)
			m.Data = fmt.Appendf(nil, `{"schedule":"@every 1h","max_fires":%d}`, n+1)
			switch n % 5 {
			case 1: // refused
				m.Data = fmt.Appendf(nil, `{"schedule":"@every 1h","if_version":%d}`, 1_000_000)
			case 2: // the latest one that was accepted, again
				m.Data = fmt.Appendf(nil, `{"schedule":"@every 1h","max_fires":%d}`, n-1)
			}
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	sent.Wait()
	for range jobs * rounds {
		a := <-answers
		if a.n%5 == 1 {
			if e := carillon.ParseError(a.Data); e.Code != carillon.CodeVersionConflict {
				t.Fatalf("put %d of %s: %s", a.n, a.job, a.Data)
			}
			continue
		}
		got, err := carillon.ParseJobReply(a.Data)
		want := uint64(a.n + 1)
		if a.n%5 == 2 {
			want = uint64(a.n - 1)
		}
		if err != nil || got.ID != a.job || got.Spec.MaxFires != want || got.Next.IsZero() {
			t.Fatalf("put %d of %s: %s", a.n, a.job, a.Data)
		}
	}
	for job := range jobs {
		got, err := c.Get(t.Context(), fmt.Sprint("t-", job))
		if err != nil || got.Spec.MaxFires != rounds || got.Version != rounds*3/5 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	unbrokenLog(t, r)
}
