package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
)

// The clients and the import are commands of the real command line: the run must be able to read their lines of JSON.
func TestCommands(t *testing.T) {
	t.Parallel() // it waits for most of its time
	bin := filepath.Join(t.TempDir(), "carillon")
	if out, err := exec.Command("go", "build", "-o", bin, "../cmd/carillon").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := CommandsConfig{
		Service:        service(t),
		ClientsCommand: []string{bin, "bench", "clients", "--server"}, ImportCommand: []string{bin, "job", "import", "--json", "--server"},
		Jobs: 1000, Imports: 300, Clients: 3, Window: 4, Offered: 1000, Duration: 500 * time.Millisecond, Rounds: 1, RoundTime: 100 * time.Millisecond,
	}
	r, err := RunCommands(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(c.Service.Data, scratchPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	refused := int(r.Figures.Get("offered_refused"))
	if want := (Checks{Expected: 500 + 500 - refused + 300}); *r.Checks != want {
		t.Errorf("checks are %+v, expected %+v", *r.Checks, want)
	}
	if got := r.Figures.Get("read_back_jobs"); got != float64(r.Checks.Expected) {
		t.Errorf("%v jobs were read back", got)
	}
	for _, name := range []string{
		"creates_per_s", "updates_per_s", "deletes_per_s", "imports_per_s", "latency_p50_ms", "latency_p99_ms", "saturated_latency_p99_ms",
		"single_creates_per_s", "single_latency_p50_ms", "single_update_latency_p50_ms", "single_delete_latency_p50_ms",
		"log_round_trip_p50_ms", "commit_p50_ms", "single_latency_ratio", "log_round_trip_in_process_p50_ms", "single_latency_tcp_ratio",
		"bare_create_p50_ms", "single_latency_bare_ratio",
	} {
		if r.Figures.Get(name) <= 0 {
			t.Errorf("%s is %v", name, r.Figures.Get(name))
		}
	}
	h, err := decode(r.Histograms["latency_us"])
	if err != nil || h.TotalCount() != 500 {
		t.Errorf("the open loop's histogram is %v, %v", h, err)
	}
	if len(r.Targets) != 3 {
		t.Errorf("targets are %v", r.Targets)
	}
}

// readBack notices jobs that are not as the service acknowledged them.
func TestReadBack(t *testing.T) {
	e, nc := running(t)
	c, err := CommandsConfig{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	payload, due := payloadOf(c.PayloadBytes), time.Now().Add(time.Hour).UnixMilli()
	client := carillon.Connect(nc)
	for _, job := range []carillon.Job{
		commandJob("x-a-", 0, 0, due, payload), commandJob("x-a-", 1, 0, due, payload), // as they must be
		commandJob("x-a-", 2, 1, due, payload),                                         // another payload
		commandJob("x-a-", 3, 0, due+1, payload),                                       // another time
		commandJob("x-a-", 5, 0, due, payload), commandJob("x-b-", 0, 0, due, payload), // one too many, and one of no group
		commandJob("x-a-", 6, 0, due, payload), // was refused: it may be there or not
	} {
		if _, err := client.Put(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	var r Result
	r.Checks = &Checks{}
	m := &commands{CommandsConfig: c, engine: e, nc: nc, run: "x", due: due, result: &r, want: map[string]group{
		"x-a-": {from: 0, to: 5, refused: map[int]bool{6: true}}, // and 4 is missing
	}}
	if err := m.readBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := (Checks{Expected: 5, Missing: 1, Stray: 4}); *r.Checks != want {
		t.Errorf("checks are %+v, expected %+v", *r.Checks, want)
	}
}

func TestPipe(t *testing.T) {
	e, nc := running(t)
	p, err := newPipe(nc, e.Names)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	var refusal error
	if err := p.send(carillon.VerbDelete, "nobody", nil, func(a answer) { refusal = a.err }); err != nil {
		t.Fatal(err)
	}
	if err := p.drain(t.Context()); err != nil || !errors.Is(refusal, &carillon.Error{Code: carillon.CodeNotFound}) {
		t.Errorf("deleting a job that is not there: %v, %v", refusal, err)
	}
	job := func(i int) carillon.Job {
		return carillon.Job{ID: fmt.Sprint("job-", i), Schedule: "@every 24h", Payload: payloadOf(10)}
	}
	done := 0
	if err := p.fill(t.Context(), 10, 3000, job, func(n int) { done = n }); err != nil || done != 2990 {
		t.Errorf("%d of 2990 jobs were put: %v", done, err)
	}
	// The latency of a command counts from when it should have been sent, and a refused command does not count as a fast one.
	r := &clientsRun{
		clientsOrder: clientsOrder{Verb: carillon.VerbPut, Prefix: "open-"}, clients: &clients{clientsStart: clientsStart{Due: time.Now().Add(time.Hour).UnixMilli()}, pipes: []*pipe{p}},
		payload: payloadOf(10), latency: []*hdrhistogram.Histogram{newHistogram()},
	}
	if err := r.send(0, 0, time.Now().Add(-time.Minute), func() {}); err != nil {
		t.Fatal(err)
	}
	r.Verb = carillon.VerbDelete
	if err := r.send(0, 7, time.Now(), func() {}); err != nil {
		t.Fatal(err)
	}
	if err := p.drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := r.latency[0]; h.TotalCount() != 2 || h.Min() < 59e6 || h.Min() > 120e6 || h.Max() < 590e6 || !slices.Equal(r.refused, []int{7}) {
		t.Errorf("%d latencies from %d to %d µs, refused are %v", h.TotalCount(), h.Min(), h.Max(), r.refused)
	}
	wrong := func(i int) carillon.Job { return carillon.Job{ID: fmt.Sprint("wrong-", i), Schedule: "never"} }
	if err := p.fill(t.Context(), 0, 10, wrong, func(int) {}); !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidSchedule}) {
		t.Errorf("a wrong job: %v", err)
	}
}

// A job that the engine refuses for now is put again. Otherwise a run would have fewer jobs than it says.
func TestPipeFillsWhatWasRefused(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	names := carillon.DefaultNames()
	asked := make(map[string]int)
	_, err = nc.Subscribe(names.API(carillon.VerbPut, "*"), func(m *nats.Msg) {
		answer := nats.NewMsg(m.Reply)
		if asked[m.Subject]++; asked[m.Subject] == 1 && strings.HasSuffix(m.Subject, "7") {
			answer.Header.Set(micro.ErrorCodeHeader, "503")
			answer.Data = (&carillon.Error{Code: carillon.CodeUnavailable}).AppendJSON(nil)
		}
		_ = m.RespondMsg(answer) // if it fails, the pipe waits in vain, and says so
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPipe(nc, names)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	done := 0
	job := func(i int) carillon.Job { return carillon.Job{ID: fmt.Sprint("job-", i), Schedule: "@daily"} }
	if err := p.fill(t.Context(), 0, 20, job, func(n int) { done = n }); err != nil || done != 20 {
		t.Errorf("%d of 20 jobs were put: %v", done, err)
	}
	for subject, times := range asked {
		if want := 1 + bit(strings.HasSuffix(subject, "7")); times != want {
			t.Errorf("%s was put %d times, expected %d", subject, times, want)
		}
	}
}

// Sends that had to wait are made late: none is left out, and each keeps the time for which it was planned. A send that is not due
// yet waits.
func TestSendOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var sent, due []time.Duration
		err := sendOnTime(t.Context(), 4, func(i int) time.Time { return began.Add(time.Duration(i) * 100 * time.Millisecond) }, func(i int, at time.Time) error {
			sent, due = append(sent, time.Since(began)), append(due, at.Sub(began))
			if i == 0 {
				time.Sleep(250 * time.Millisecond)
			}
			return nil
		})
		const ms = time.Millisecond
		if err != nil || !slices.Equal(due, []time.Duration{0, 100 * ms, 200 * ms, 300 * ms}) || !slices.Equal(sent, []time.Duration{0, 250 * ms, 250 * ms, 300 * ms}) {
			t.Errorf("due %v, sent %v, %v", due, sent, err)
		}
	})
}

// If the answers to many clients were lost, drainAll waits only for those of the first such client.
func TestDrainAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := drainAll(t.Context(), []*pipe{{sent: 2, answered: 2}, {sent: 3}, {sent: 4}})
		if took := time.Since(began); err == nil || took > answerPatience*3/2 {
			t.Errorf("answers were lost, and after %s it says %v", took, err)
		}
	})
}

func TestChurn(t *testing.T) {
	t.Parallel() // it waits for most of its time
	c := ChurnConfig{
		Service: service(t),
		Rate:    400, Duration: time.Second, Nearest: 0, Farthest: 200 * time.Millisecond,
	}
	r, err := RunChurn(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	f := r.Figures
	changed := f.Get("cancelled") + f.Get("moved_later") + f.Get("moved_earlier")
	if !r.Checks.clean() || changed < 150 || f.Get("moved_later") == 0 || f.Get("moved_earlier") == 0 {
		t.Errorf("checks are %+v, figures %v", r.Checks, f)
	}
	// Each job fires once, unless it was cancelled in time, and once more if it was moved after it had fired.
	if least := 400 - int(f.Get("cancelled")); r.Checks.Expected < least || r.Checks.Expected > least+int(f.Get("fired_before_the_change")) {
		t.Errorf("%d fires were expected: %v", r.Checks.Expected, f)
	}
	if f.Get("received_p50_ms") <= 0 || f.Get("change_latency_p50_ms") <= 0 || f.Get("fsync_p50_ms") <= 0 {
		t.Errorf("figures are %v", f)
	}
	// Some jobs were due after 0.2 s and then moved by another second at least, so the triggers were due in more than 1.2 s.
	if rate := f.Get("triggers_per_s"); rate <= 0 || 1.2*rate > float64(r.Checks.Expected) {
		t.Errorf("%v triggers a second, of %d", rate, r.Checks.Expected)
	}
}

func TestSettleChanges(t *testing.T) {
	const from, due = 10_000, 10_500
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	fired := carillon.JobReply{LastScheduled: at(due)}
	for name, v := range map[string]struct {
		change      change
		first, then int64
		to          int64
		want        churned
	}{
		"cancelled":                      {change{acked: at(due - 10)}, -1, -1, 11_000, churned{cancelled: 1}},
		"cancelled late":                 {change{acked: at(due - 9)}, -1, -1, 11_000, churned{cancelled: 1, late: 1}},
		"cancelled after it fired":       {change{acked: at(due - 9), reply: fired}, 500, -1, 11_000, churned{cancelled: 1, late: 1, fired: 1}},
		"fired though it was cancelled":  {change{acked: at(due - 10), reply: fired}, -1, -1, 11_000, churned{cancelled: 1, fired: 1}},
		"moved later":                    {change{acked: at(due - 10), move: 12_000}, -1, 2000, 12_001, churned{later: 1}},
		"moved later after it fired":     {change{acked: at(due), move: 12_000, reply: fired}, 500, 2000, 12_001, churned{later: 1, late: 1, fired: 1}},
		"moved earlier":                  {change{acked: at(due - 10), move: 10_400}, -1, 400, 11_000, churned{earlier: 1}},
		"moved earlier after it fired":   {change{acked: at(due), move: 10_400, reply: fired}, 500, -1, 11_000, churned{earlier: 1, late: 1, fired: 1}},
		"moved earlier, late, not fired": {change{acked: at(due), move: 10_400}, -1, 400, 11_000, churned{earlier: 1, late: 1}},
	} {
		p := &plan{From: from, To: 11_000, First: []int64{500}, Every: []int64{0}}
		v.change.due = due
		n, err := settleChanges(p, []change{v.change})
		if err != nil || n != v.want || p.First[0] != v.first || p.Then[0] != v.then || p.To != v.to {
			t.Errorf("%s: %+v, first %d, then %d, to %d, %v", name, n, p.First[0], p.Then[0], p.To, err)
		}
	}
	p := &plan{First: []int64{0}}
	if _, err := settleChanges(p, []change{{err: errors.New("refused")}}); err == nil {
		t.Error("an error was passed over")
	}
}

// judge with a plan in which commands added fires, or may have prevented some.
func TestJudgeChanged(t *testing.T) {
	at := func(job int32, ms int64, output uint64) arrival {
		return arrival{scheduled: ms, received: ms*1e6 + 2e6, stored: ms*1e6 + 1e6, output: output, job: job}
	}
	for name, v := range map[string]struct {
		arrivals []arrival
		want     Checks
	}{
		"all":                 {[]arrival{at(0, 1000, 1), at(0, 1700, 2), at(1, 1500, 3)}, Checks{Expected: 2}},
		"without the may":     {[]arrival{at(0, 1000, 1), at(0, 1700, 2)}, Checks{Expected: 2}},
		"without the then":    {[]arrival{at(0, 1000, 1), at(1, 1500, 2)}, Checks{Expected: 2, Missing: 1}},
		"the may twice":       {[]arrival{at(0, 1000, 1), at(0, 1700, 2), at(1, 1500, 3), at(1, 1500, 4)}, Checks{Expected: 2, Duplicate: 1}},
		"what was prevented":  {[]arrival{at(0, 1000, 1), at(0, 1700, 2), at(2, 1300, 3)}, Checks{Expected: 2, Stray: 1}},
		"the may at its then": {[]arrival{at(0, 1000, 1), at(0, 1700, 2), at(1, 1700, 3)}, Checks{Expected: 2, Stray: 1}},
	} {
		p := &plan{
			Prefix: "x-", From: 1000, To: 2000,
			First: []int64{0, -1, -1}, Every: []int64{0, 0, 0}, Then: []int64{700, -1, -1}, May: []int64{-1, 500, -1},
		}
		r, err := judge(p, v.arrivals, nil)
		if err != nil || r.Checks != v.want {
			t.Errorf("%s: %+v, %v; expected %+v", name, r.Checks, err, v.want)
		}
		if v.want.Missing > 0 && !reflect.DeepEqual(r.Missing, []string{"x-0@1700"}) {
			t.Errorf("%s: %v is said to be missing", name, r.Missing)
		}
	}

	forced := &plan{From: 1000, To: 2000, First: []int64{0, 500, -1}, Every: []int64{0, 0, 0}, Forced: true}
	r, err := judge(forced, []arrival{at(0, 1234, 1), at(1, 1999, 2)}, nil)
	if err != nil || r.Checks != (Checks{Expected: 2}) {
		t.Errorf("forced: %+v, %v", r.Checks, err)
	}
	r, err = judge(forced, []arrival{at(0, 1234, 1), at(0, 1235, 2), at(2, 1500, 3)}, nil)
	if err != nil || r.Checks != (Checks{Expected: 2, Missing: 1, Duplicate: 1, Stray: 1}) {
		t.Errorf("forced, and wrong: %+v, %v", r.Checks, err)
	}

	// After a kill, the server may call a second delivery the first one, but only of the very same message.
	killed := &plan{From: 1000, To: 2000, First: []int64{0}, Every: []int64{0}, Kills: true}
	other := at(0, 1000, 1)
	other.stored++
	r, err = judge(killed, []arrival{at(0, 1000, 1), at(0, 1000, 1), other}, nil)
	if err != nil || r.Checks != (Checks{Expected: 1, Duplicate: 1, Redelivered: 1}) {
		t.Errorf("after a kill: %+v, %v", r.Checks, err)
	}
}

func TestIdle(t *testing.T) {
	t.Parallel() // it waits for most of its time
	for _, kind := range []string{IdleIntervals, IdleCron, IdleOneShots} {
		c := IdleConfig{Service: service(t), Jobs: 500, Kind: kind, Duration: 300 * time.Millisecond, Settle: 100 * time.Millisecond}
		r, err := RunIdle(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if want := (Checks{Expected: 500}); *r.Checks != want {
			t.Errorf("%s: checks are %+v", kind, *r.Checks)
		}
		for _, name := range []string{"resident_mib", "resident_empty_mib", "heap_bytes_per_job", "disk_bytes_per_job", "puts_per_s", "wakeups_per_s"} {
			if r.Figures.Get(name) <= 0 {
				t.Errorf("%s: %s is %v", kind, name, r.Figures.Get(name))
			}
		}
		for _, name := range []string{"cpu_percent", "resident_bytes_per_job"} { // which may well be 0, or less, with 500 jobs
			if _, ok := r.Figures.find(name); !ok {
				t.Errorf("%s: %s is missing", kind, name)
			}
		}
		if hot := r.Figures.Get("hot_jobs"); hot != 500 {
			t.Errorf("%s: %v jobs are hot", kind, hot)
		}
		if want := 3 - bit(kind == IdleOneShots); len(r.Targets) != want || len(r.Series["resident_mib"]) < 2 {
			t.Errorf("%s: targets %v, series %v", kind, r.Targets, r.Series)
		}
	}
}

func TestLaterByRank(t *testing.T) {
	of := func(counts map[int64]int64) *hdrhistogram.Histogram {
		h := NewHistogram()
		for ms, n := range counts {
			if err := h.RecordValues(ms*1000, n); err != nil {
				t.Fatal(err)
			}
		}
		return h
	}
	without := of(map[int64]int64{1: 900, 5: 90, 40: 10})
	for _, c := range []struct {
		with map[int64]int64
		ms   int64
	}{
		{map[int64]int64{1: 900, 5: 90, 40: 10}, 0},
		{map[int64]int64{1: 900, 5: 89, 40: 11}, 35}, // one more is as late as the latest
		{map[int64]int64{1: 899, 5: 90, 40: 11}, 35}, // and all between stand one place further
		{map[int64]int64{1: 900, 5: 90, 40: 9, 60: 1}, 20},
		{map[int64]int64{2: 900, 5: 90, 30: 10}, 1}, // the latest came sooner, most a little later
		{map[int64]int64{1: 800, 5: 80, 39: 10}, 0}, // fewer triggers: compared from the latest on
		{map[int64]int64{3: 10}, -37},               // all sooner
	} {
		got := laterByRank(of(c.with), without)
		if within := int64(200); got < c.ms*1000-within || got > c.ms*1000+within { // the precision of a histogram
			t.Errorf("%v is later by %d µs at most, want %d ms", c.with, got, c.ms)
		}
	}
}

// Ratios and differences are computed for each round, or pair, and then the median is taken.
func TestFiguresOfPairs(t *testing.T) {
	part := func(p99, p999 float64, ms ...int64) Result {
		h := newHistogram()
		for _, v := range ms {
			record(h, v*1e6)
		}
		encoded, err := encode(h)
		if err != nil {
			t.Fatal(err)
		}
		return Result{Figures: Figures{{"received_p99_ms", p99}, {"received_p999_ms", p999}}, Histograms: map[string]string{"received_us": encoded}}
	}
	var f Figures
	l := baseline{
		inside: &ceiling{}, trips: []float64{3, 1, 5}, insideTrips: []float64{1, 2, 1}, commits: []float64{1, 3, 4}, bares: []float64{2, 4, 5},
	}
	l.figures(&f, []float64{8, 8, 18})
	m := midnights{
		cold: []Result{part(6, 7), part(8, 9), part(20, 20)}, hot: []Result{part(3, 4), part(2, 4), part(4, 4)}, loaded: 7, late: 2, hotLoaded: 1,
	}
	m.figures(&f)
	s := saving{
		saves: 3, took: 2 * time.Second, verify: 4 * time.Second, restore: 8 * time.Second,
		without: []Result{part(1, 2, 5), part(2, 4, 10)}, with: []Result{part(3, 6, 20), part(2, 5, 20)},
	}
	if err := s.figures(&f, 16); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"single_latency_ratio": 3.6, "single_latency_tcp_ratio": 2, "single_latency_bare_ratio": 3.6,
		"log_round_trip_p50_ms": 3, "log_round_trip_in_process_p50_ms": 1, "commit_p50_ms": 3, "bare_create_p50_ms": 4,
		"midnight_p99_ms": 8, "midnight_p99_hot_ms": 3, "midnight_p99_2_ms": 8, "midnight_p99_hot_2_ms": 2, "midnight_p99_ratio": 4,
		"midnight_loaded_jobs": 7, "midnight_loaded_late_jobs": 2, "midnight_hot_loaded_jobs": 1,
		"saves": 3, "save_s": 2, "save_jobs_per_s": 8, "verify_jobs_per_s": 4, "restore_s": 8, "restore_jobs_per_s": 2,
		"lateness_p99_without_ms": 1.5, "lateness_p99_save_ms": 2.5, "lateness_p999_for_save_1_ms": 4, "lateness_p999_for_save_ms": 2.5,
	} {
		if got := f.Get(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, expected %v", name, got, want)
		}
	}
	if got := f.Get("lateness_any_for_save_ms"); math.Abs(got-12.5) > 0.1 { // the precision of a histogram
		t.Errorf("any trigger was later by %v ms for a save, expected 12.5", got)
	}
}

func TestScale(t *testing.T) {
	t.Parallel() // it waits for most of its time
	c := ScaleConfig{
		Service: service(t, "--checkpoint-every", "200ms", "--hot-jobs", "1"),
		Jobs:    500, Rate: 100, Duration: time.Second, Save: true, Midnight: 60, settle: 2 * time.Second, midnightTime: 2 * time.Second, midnightLead: 9 * time.Second, midnightPairs: 2,
	}
	var steps []string
	c.Progress = func(step string, _, _ int) {
		if len(steps) == 0 || steps[len(steps)-1] != step {
			steps = append(steps, step)
		}
	}
	r, err := RunScale(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// The empty engine is measured when it has settled, as the one with the jobs is.
	if i := slices.Index(steps, "importing jobs"); i < 1 || steps[i-1] != "waiting for checkpoints" {
		t.Errorf("steps were %q", steps)
	}
	// Hot midnights are prepared like cold ones, and their jobs stay in memory.
	prepared := 0
	for i, step := range steps[1:] {
		prepared += bit(steps[i] == "putting jobs" && step == "waiting for checkpoints") - bit(step == beginAgain)
	}
	if prepared != 2*c.midnightPairs {
		t.Errorf("%d midnights waited for checkpoints, expected %d; steps were %q", prepared, 2*c.midnightPairs, steps)
	}
	if loaded, ok := r.Figures.find("midnight_hot_loaded_jobs"); !ok || loaded > 0 {
		t.Errorf("%v jobs of hot midnights came from disk, %t", loaded, ok)
	}
	// Three times lateness; the jobs themselves, in the engine and restored; four midnights; and what fired around the kill.
	if !r.Checks.clean() || r.Checks.Expected < 3*100+2*500+4*60 {
		t.Errorf("checks are %+v", *r.Checks)
	}
	if _, ok := r.Figures.find("lateness_any_for_save_ms"); !ok {
		t.Error("how much later any trigger was for a save is not told")
	}
	for _, name := range []string{
		"imports_per_s", "resident_bytes", "disk_bytes_per_job", "received_max_save_3_ms", "round_trip_max_without_save_1_ms", "lateness_p99_ms", "lateness_p99_empty_ms",
		"restart_to_first_trigger_s", "save_jobs_per_s", "verify_jobs_per_s", "restore_jobs_per_s", "checkpoint_pause_max_ms", "checkpoint_pause_own_max_ms", "load_pause_own_max_ms", "floor_pause_max_ms", "lateness_p99_save_ms", "midnight_p99_ms", "midnight_p99_hot_ms", "midnight_p99_2_ms",
		"disk_written_bytes_per_job", "write_amplification_ratio",
	} {
		if r.Figures.Get(name) <= 0 {
			t.Errorf("%s is %v", name, r.Figures.Get(name))
		}
	}
	if len(r.Targets) != 14 {
		t.Errorf("targets are %v", r.Targets)
	}
	if _, ok := r.Figures.find("idle_cpu_percent"); !ok { // mostly 0 with 500 jobs
		t.Error("idle_cpu_percent is missing")
	}
	if loaded := r.Figures.Get("midnight_loaded_jobs"); loaded != 2*60 {
		t.Errorf("%v jobs came from disk for two midnights of 60", loaded)
	}
	if _, ok := r.Figures.find("midnight_loaded_late_jobs"); !ok { // 0 on a machine that is not busy
		t.Error("midnight_loaded_late_jobs is missing")
	}
	if r.Figures.Get("saves") < 2 { // a save of 500 jobs takes less than a second of lateness
		t.Errorf("%v snapshots were saved", r.Figures.Get("saves"))
	}
}

func TestSoak(t *testing.T) {
	t.Parallel() // it waits for most of its time
	rounds, triggers := 0, 0
	c := SoakConfig{
		Service: service(t),
		Rate:    200, Duration: 4 * time.Second, Round: 2 * time.Second, KillEvery: 3 * time.Second,
	}
	c.Report = func(r SoakRound) {
		rounds++
		triggers += r.Triggers
		if !strings.Contains(r.String(), "missing 0") || r.CPU <= 0 {
			t.Error(r)
		}
	}
	r, err := RunSoak(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// Half of the triggers are of recurring jobs, none of which is changed.
	if !r.Checks.clean() || r.Checks.Expected < 400+300 || rounds != 2 {
		t.Errorf("%d rounds, checks are %+v", rounds, *r.Checks)
	}
	if r.Figures.Get("kills") < 1 || r.Figures.Get("ready_max_s") <= 0 || r.Figures.Get("commands_per_s") < 100 || r.Figures.Get("resident_max_mib") <= 0 {
		t.Errorf("figures are %v", r.Figures)
	}
	// The histogram of all that was received is that of all rounds, and each round is in one of the other two.
	count := func(name string) int {
		if r.Histograms[name] == "" {
			return 0
		}
		h, err := decode(r.Histograms[name])
		if err != nil {
			t.Fatal(err)
		}
		return int(h.TotalCount())
	}
	all, without, after := count("received_us"), count("received_without_kills_us"), count("received_after_kill_us")
	if all != triggers || without+after != all || after == 0 {
		t.Errorf("of %d triggers %d are told of, %d without kills and %d after one", triggers, all, without, after)
	}
	if most := max(r.Figures.Get("received_without_kills_max_ms"), r.Figures.Get("received_after_kill_max_ms")); r.Figures.Get("received_max_ms") != most {
		t.Errorf("the latest trigger of all came after %v ms, of the parts after %v", r.Figures.Get("received_max_ms"), most)
	}
	if len(r.Series["disk_mib"]) != 2 || r.Series["disk_mib"][1][0] != 4 {
		t.Errorf("series are %v", r.Series)
	}
}

// A run whose engine ends by itself ends, too, and does not repeat its commands for as long as it would while an engine is started again.
func TestSoakEngineEnds(t *testing.T) {
	t.Parallel()
	of := service(t)
	pid := filepath.Join(t.TempDir(), "pid")
	of.Command = append([]string{"/bin/sh", "-c", `echo $$ > "$0"; exec "$@"`, pid}, of.Command...)
	var killed time.Time
	_, err := RunSoak(t.Context(), SoakConfig{
		Service: of, Rate: 200, Duration: 20 * time.Second, Round: 2 * time.Second,
		Report: func(SoakRound) {
			if !killed.IsZero() {
				return
			}
			b, err := os.ReadFile(pid)
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			killed = time.Now()
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
	})
	if !errors.Is(err, errEngineEnded) || !strings.Contains(err.Error(), "the engine ended by itself (signal: killed)") {
		t.Errorf("the engine was killed at %s: %v", killed, err)
	}
	if took := time.Since(killed); took >= soakRetry {
		t.Errorf("the run ended %s later", took)
	}
}

// What a round cannot measure in a service that runs already is left out, and not reported as 0.
func TestSoakSumOfARunningService(t *testing.T) {
	s := &soak{
		SoakConfig: SoakConfig{Round: time.Second}, engine: &engine{}, result: &Result{}, rounds: []SoakRound{{Since: time.Second, Triggers: 9}},
		received: newHistogram(), allCommands: newHistogram(),
	}
	if err := s.sum(); err != nil {
		t.Fatal(err)
	}
	for name, points := range s.result.Series {
		if strings.HasSuffix(name, "_mib") || strings.HasSuffix(name, "_percent") {
			t.Errorf("%s is %v", name, points)
		}
	}
	if said := s.rounds[0].String(); len(s.result.Series["triggers_per_s"]) != 1 || strings.Contains(said, "MiB") || strings.Contains(said, "CPU") {
		t.Errorf("series are %v, and a round is %q", s.result.Series, said)
	}
}

// An engine that does not answer for a while does not end a run: a failed read of a stream is repeated.
func TestSoakInsists(t *testing.T) {
	t.Parallel() // it waits for most of its time
	e, nc := running(t)
	s := &soak{engine: e, nc: nc}
	if err := s.ends(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := carillon.Connect(nc).Put(t.Context(), carillon.Job{ID: "once", Schedule: "@every 1h"}); err != nil {
		t.Fatal(err)
	}
	if _, err := carillon.Connect(nc).Fire(t.Context(), "once"); err != nil {
		t.Fatal(err)
	}
	stored := func() bool {
		now := &soak{engine: e, nc: nc}
		if err := now.ends(t.Context()); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(now.streams, func(at soakStream) bool { return at.seq > 0 })
	}
	eventually(t, "the trigger is stored", stored)
	signal := func(sig os.Signal) {
		t.Helper()
		if err := e.cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT) // also if the test fails: a frozen engine does not stop
	read := make(chan error, 1)
	go func() { read <- s.follow(t.Context(), new(Checks)) }()
	eventually(t, "a read has failed", func() bool { return s.repeated.Load() > 0 || len(read) > 0 })
	signal(syscall.SIGCONT)
	if err := <-read; err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(s.streams, func(at soakStream) bool { return at.output == 1 }) {
		t.Errorf("the trigger was not read: %v", s.streams)
	}
}

// follow counts output numbers that were left out, and numbers and triggers that are stored twice, in the same round or in the one
// before, and nothing else.
func TestSoakFollows(t *testing.T) {
	t.Parallel()
	url, js := startNATS(t)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	names := carillon.DefaultNames()
	subject := names.Trigger(0, topic)
	out, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.OutStream(0), Subjects: []string{subject}})
	if err != nil {
		t.Fatal(err)
	}
	store := func(output, trigger string) {
		t.Helper()
		m := &nats.Msg{Subject: subject, Header: nats.Header{}}
		if output != "" {
			m.Header.Set(carillon.HeaderOutput, output)
		}
		if trigger != "" {
			m.Header.Set(carillon.HeaderTrigger, trigger)
		}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	store("3", "before@1") // before the run
	s := &soak{engine: &engine{Service: Service{Names: names}, partitions: 1}, nc: nc}
	if err := s.ends(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, round := range []struct {
		stored [][2]string // output, trigger
		want   Checks
	}{
		{[][2]string{{"8", "a@1"}, {"9", ""}, {"", ""}, {"10", "b@1"}}, Checks{}}, // an event, and a foreign message
		{[][2]string{{"13", "c@1"}}, Checks{Gaps: 2}},
		{[][2]string{{"14", "d@1"}, {"15", "c@1"}, {"16", "d@1"}}, Checks{Duplicate: 2}},
		{[][2]string{{"17", "c@1"}, {"18", "e@1"}}, Checks{Duplicate: 1}},
		{[][2]string{{"17", ""}, {"18", ""}, {"19", ""}, {"18", ""}, {"20", ""}}, Checks{Duplicate: 3}},
		{nil, Checks{}},
	} {
		for _, m := range round.stored {
			store(m[0], m[1])
		}
		var got Checks
		if err := s.follow(t.Context(), &got); err != nil || got != round.want {
			t.Errorf("round %d: %+v, %v; expected %+v", i, got, err, round.want)
		}
	}
	store("21", "f@1")
	store("22", "g@1")
	if err := out.Purge(t.Context(), jetstream.WithPurgeKeep(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.follow(t.Context(), new(Checks)); err == nil || !strings.Contains(err.Error(), "dropped messages 17 to 17") {
		t.Errorf("of a stream that dropped a message before it was read: %v", err)
	}
}

// The figures of a soak run are those of all its rounds.
func TestSoakSums(t *testing.T) {
	s := &soak{
		SoakConfig: SoakConfig{Round: 30 * time.Minute}, engine: &engine{dir: t.TempDir()}, result: &Result{},
		received: newHistogram(), allCommands: newHistogram(), afterKill: newHistogram(), withoutKills: newHistogram(),
		kills: []time.Time{time.Now()}, ready: 3 * time.Second,
	}
	for i, v := range []float64{50, 90, 10, 20} { // it grows by 10 in half an hour at the end
		s.rounds = append(s.rounds, SoakRound{
			Since: time.Duration(i+1) * s.Round, Triggers: 3600, Commands: 1800, ResidentMiB: v, DiskMiB: 2 * v, CPU: v,
			Checks: Checks{Expected: 1, Early: 2, Missing: 3, Duplicate: 4, Gaps: 5, Stray: 6, Redelivered: 7},
		})
	}
	if err := s.sum(); err != nil {
		t.Fatal(err)
	}
	if want := (Checks{Expected: 4, Early: 8, Missing: 12, Duplicate: 16, Gaps: 20, Stray: 24, Redelivered: 28}); *s.result.Checks != want {
		t.Errorf("checks are %+v, expected %+v", *s.result.Checks, want)
	}
	for name, want := range map[string]float64{
		"soaked_s": 7200, "triggers_per_s": 2, "commands_per_s": 1, "kills": 1, "ready_max_s": 3,
		"resident_first_mib": 50, "resident_last_mib": 20, "resident_max_mib": 90, "resident_growth_mib_per_h": 20,
		"disk_first_mib": 100, "disk_last_mib": 40, "disk_max_mib": 180, "disk_growth_mib_per_h": 40, "engine_cpu_percent": 35,
	} {
		if got := s.result.Figures.Get(name); got != want {
			t.Errorf("%s is %v, expected %v", name, got, want)
		}
	}
	if got := s.result.Series["triggers_per_s"]; len(got) != 4 || got[3] != (Point{7200, 2}) {
		t.Errorf("triggers a second over time are %v", got)
	}
}

// The time that a command waited behind others counts in its latency, but not in the time for which it is repeated.
func TestSoakPersists(t *testing.T) {
	s := &soak{commands: newHistogram()}
	sent := 0
	err := s.retryCommand(t.Context(), time.Now().Add(-soakRetry-time.Minute), func(string) error {
		if sent++; sent < 3 {
			return errors.New("nobody answers")
		}
		return nil
	})
	if err != nil || sent != 3 {
		t.Errorf("sent %d times: %v", sent, err)
	}
	if at, least := s.commands.Max(), (soakRetry + time.Minute).Microseconds(); s.commands.TotalCount() != 1 || at < least {
		t.Errorf("%d commands are told of, the latest after %d µs, expected one after %d", s.commands.TotalCount(), at, least)
	}
	b := &soakBatch{judged: make(chan struct{}), judgedAt: time.UnixMilli(2000)}
	close(b.judged)
	for _, planned := range []int64{1000, 3000} { // a batch is deleted once it is judged: until then its deletes are not late
		if from, err := b.over(t.Context(), time.UnixMilli(planned)); err != nil || from.UnixMilli() != max(2000, planned) {
			t.Errorf("what was planned for %d counts from %d, %v", planned, from.UnixMilli(), err)
		}
	}
}

func TestSlope(t *testing.T) {
	for _, v := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 0}, {[]float64{1, 2, 3}, 2}, {[]float64{5, 5, 5, 5}, 0}, {[]float64{3, 1}, -4}} {
		if got := slope(v.values, 0.5); got != v.want {
			t.Errorf("the slope of %v is %v, expected %v", v.values, got, v.want)
		}
	}
}

func TestBadWorkloads(t *testing.T) {
	server := Service{Server: "nats://127.0.0.1:1"}
	for name, err := range map[string]error{
		"Jobs":             CommandsConfig{Jobs: 1}.Validate(),
		"Imports":          CommandsConfig{Imports: -1}.Validate(),
		"Clients":          CommandsConfig{Clients: -1}.Validate(),
		"Window":           CommandsConfig{Window: -1}.Validate(),
		"Offered":          CommandsConfig{Offered: -1}.Validate(),
		"one create":       CommandsConfig{Duration: 1}.Validate(),
		"Rounds":           CommandsConfig{Rounds: -1}.Validate(),
		"Rate":             ChurnConfig{Rate: -1}.Validate(),
		"Nearest":          ChurnConfig{Nearest: 2, Farthest: 1}.Validate(),
		"Farthest":         ChurnConfig{Farthest: time.Hour}.Validate(),
		"own":              IdleConfig{Service: server}.Validate(),
		"Kind":             IdleConfig{Kind: "weekly"}.Validate(),
		"Settle":           IdleConfig{Settle: -1}.Validate(),
		"Ahead":            IdleConfig{Ahead: time.Second}.Validate(),
		"Round":            SoakConfig{Round: time.Second}.Validate(),
		"whole rounds":     SoakConfig{Duration: 90 * time.Second}.Validate(),
		"KillEvery":        SoakConfig{Service: server, KillEvery: 1}.Validate(),
		"1,000,000":        ChurnConfig{Rate: 2_000_000}.Validate(),
		"100 to 100,000":   SoakConfig{Rate: 99}.Validate(),
		"must be 3":        SoakConfig{PayloadBytes: 2}.Validate(),
		"Concurrency is -": SoakConfig{Concurrency: -1}.Validate(),
		"is 100001":        SoakConfig{Concurrency: 100_001}.Validate(),
		"is 100002":        ChurnConfig{Concurrency: 100_002}.Validate(),
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []interface{ Validate() error }{CommandsConfig{}, ChurnConfig{}, IdleConfig{}, SoakConfig{}} {
		if err := c.Validate(); err != nil {
			t.Errorf("the defaults of %T: %v", c, err)
		}
	}
}
