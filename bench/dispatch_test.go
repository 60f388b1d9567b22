package bench

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

func smallDispatch(t *testing.T) DispatchConfig {
	return DispatchConfig{Service: service(t), Triggers: 2001, CronPerS: 1000, Pairs: 1, Pause: time.Second}
}

func TestDispatch(t *testing.T) {
	t.Parallel() // it mostly waits
	c := smallDispatch(t)
	c.Partitions, c.PersistAsync = 3, true
	r, err := RunDispatch(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// 2,001 one-shots, and 1,000 cron jobs that fire three times.
	if !r.Checks.clean() || r.Checks.Expected != 2001+3000 {
		t.Errorf("checks are %+v, expected 5,001 triggers and nothing wrong", r.Checks)
	}
	for _, name := range []string{
		"triggers_per_s", "triggers_middle_per_s", "cron_triggers_per_s", "cron_triggers_middle_per_s",
		"ceiling_chained_per_s", "ceiling_linked_per_s", "ceiling_async_per_s",
		"ratio_chained", "ratio_async", "cron_ratio_chained", "cron_ratio_async",
	} {
		if v := r.Figures.Get(name); v <= 0 || math.IsInf(v, 0) {
			t.Errorf("%s is %v", name, v)
		}
	}
	if len(r.Targets) != 4 || !r.Targets[0].AtLeast {
		t.Errorf("targets are %+v", r.Targets)
	}
	nothingIn(t, c.Service.Data)
}

// A small run is due within less time: otherwise its rate would only be that at which it becomes due.
func TestDispatchIsDueAtOnce(t *testing.T) {
	c := DispatchConfig{Triggers: 20_000, CronPerS: 20_000}
	once, cron := oneShots("a-", &c), cronJobs("b-", &c)
	if last := once.First[len(once.First)-1]; last >= 20 || cron.spread != 20*time.Millisecond {
		t.Errorf("one-shots are due within %d ms, cron within %s", last+1, cron.spread)
	}
	if c.CronPerS = 10_000; cronJobs("b-", &c).spread != time.Second {
		t.Error("cron that fires again does not take the second until then")
	}
}

// A salvo that was put too late is put again, and what it has fired by then does not count.
func TestJobBurstTooLate(t *testing.T) {
	t.Parallel() // it mostly waits
	e, nc := running(t)
	o, err := e.outputs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.nc.Close()
	c := smallDispatch(t)
	for name, of := range map[string]func(string, *DispatchConfig) *jobBurst{"once-": oneShots, "cron-": cronJobs} {
		s := of(name, &c)
		first := true
		s.placed = func() error {
			if first {
				first = false
				eventually(t, "it is too late", func() bool { return time.Now().UnixMilli() >= s.From })
			}
			return nil
		}
		after, err := o.ends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.put(t.Context(), nc, e.Names, new(time.Duration), time.Second); err != nil {
			t.Fatal(err)
		}
		if err := o.await(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		times := 0
		checks, err := o.tally(t.Context(), after, s, func(int, int64, int64) { times++ })
		if err != nil || !checks.clean() || times != s.triggers() {
			t.Errorf("%s: %d triggers of %d, %+v, %v", name, times, s.triggers(), checks, err)
		}
		ended, err := o.ends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stored := 0
		for p := range ended {
			stored += int(ended[p] - after[p])
		}
		if stored <= s.triggers() {
			t.Errorf("%s: %d outputs: none fired that was put too late", name, stored)
		}
	}
}

func TestDispatchEndsWithItsContext(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, at := range []string{"one-shots: waiting for the first", "ceiling"} {
		ctx, cancel := context.WithCancel(t.Context())
		c := smallDispatch(t)
		c.Progress = func(step string, _, _ int) {
			if strings.HasSuffix(step, at) {
				cancel()
			}
		}
		if _, err := RunDispatch(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("at %s the error is %v", at, err)
		}
		nothingIn(t, c.Service.Data)
	}
}

// A running service's streams must have room for all that is counted. A run leaves the service as it found it.
func TestDispatchAndBurstOfARunningService(t *testing.T) {
	t.Parallel() // it mostly waits
	e, nc := running(t, "--out-max-bytes", "1048576")
	putOther(t, nc)

	c := smallDispatch(t)
	c.Service = runningAt(t, e)
	r, err := RunDispatch(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Checks.clean() || r.Checks.Expected != 5001 {
		t.Errorf("checks are %+v, expected 5,001 triggers and nothing wrong", r.Checks)
	}
	if cpu := r.Figures.Get("engine_cpu_us_per_trigger"); cpu != 0 {
		t.Errorf("%v µs of a process that is not ours", cpu)
	}
	if r.Machine.Storage != "" {
		t.Errorf("the service's data are said to be on %s, which the bench does not know", r.Machine.Storage)
	}
	burst, err := RunBurst(t.Context(), BurstConfig{
		Service: c.Service, Jobs: 1000, SideRate: 100, Rounds: 1, Pause: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !burst.Checks.clean() || burst.Checks.Expected < 1000 {
		t.Errorf("checks of a burst are %+v, expected 1,000 triggers or more and nothing wrong", burst.Checks)
	}
	onlyOther(t, nc)

	c.Triggers, c.CronPerS = 100_000, 0
	if _, err := RunDispatch(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--out-max-bytes 8900000") {
		t.Errorf("100,000 triggers in 8 streams of a MiB: %v", err)
	}
}

func TestRates(t *testing.T) {
	for name, v := range map[string]struct {
		times       []int64
		all, middle float64
	}{
		"none":    {nil, 0, 0},
		"one":     {[]int64{7}, 0, 0},
		"at once": {[]int64{7, 7, 7}, 0, 0},
		"even":    {every(100, 10*time.Millisecond), 100 / 0.99, 90 / 0.89},
		"a straggler on either end": {
			append([]int64{-int64(time.Hour)}, append(every(98, 10*time.Millisecond), int64(time.Hour))...), 100 / 7200., 90 / 0.89,
		},
	} {
		if all, middle := rates(v.times); math.Abs(all-v.all) > 1e-9 || math.Abs(middle-v.middle) > 1e-9 {
			t.Errorf("%s: %v and %v a second, expected %v and %v", name, all, middle, v.all, v.middle)
		}
	}
}

// every returns n times, one every d, the last first.
func every(n int, d time.Duration) (times []int64) {
	for i := range n {
		times = append(times, int64(n-1-i)*int64(d))
	}
	return times
}

func TestMedian(t *testing.T) {
	for _, v := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 9, 2}, 3}} {
		if got := median(v.of); got != v.want {
			t.Errorf("the median of %v is %v, expected %v", v.of, got, v.want)
		}
	}
}

// A ratio is computed for each pair, and then the median is taken: a machine that slows down slows both sides of a pair.
func TestPairs(t *testing.T) {
	p := pairs{chained: []float64{100, 50, 10}, linked: []float64{100, 50, 10}, async: []float64{10, 10, 10}}
	for i, v := range []float64{90, 40, 9.5} {
		p.oneShots = append(p.oneShots, saturation{rate: v, middle: v + 1, cpu: float64(i)})
		p.cron = append(p.cron, saturation{rate: v / 2})
	}
	var f Figures
	p.figures(&f)
	for name, want := range map[string]float64{
		"triggers_per_s": 40, "triggers_middle_per_s": 41, "ratio_chained": 0.9, "ratio_async": 4, "cron_ratio_chained": 0.45,
		"ceiling_chained_per_s": 50, "engine_cpu_us_per_trigger": 1,
	} {
		if got := f.Get(name); got != want {
			t.Errorf("%s is %v, expected %v", name, got, want)
		}
	}
	if p.chained[0] != 100 {
		t.Errorf("the pairs are in another order: %v", p.chained)
	}
}

// tally counts whatever is wrong with the streams. If it did not, a result without flaws would mean nothing.
func TestTally(t *testing.T) {
	m, err := openCeiling(t.Context(), CeilingConfig{Service: Service{Data: t.TempDir()}, PayloadBytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	names := carillon.DefaultNames()
	publish := func(p int, output, job string, due int64) {
		t.Helper()
		h := nats.Header{carillon.HeaderOutput: {output}}
		if job != "" {
			h[carillon.HeaderTrigger] = []string{carillon.FormatTriggerID(job, due)}
		}
		if _, err := m.js.PublishMsg(t.Context(), &nats.Msg{Subject: names.Trigger(p, "x"), Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	o := &outputs{names: names, js: m.js}
	for p := range 2 {
		s, err := m.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.OutStream(p), Subjects: []string{names.Trigger(p, ">")}})
		if err != nil {
			t.Fatal(err)
		}
		o.streams = append(o.streams, s)
	}
	from := time.Now().UnixMilli() - 60_000
	// Two cron jobs of three fires, their offsets 100 and 200.
	s := newJobBurst("x-", 2, 3)
	s.spread, s.From, s.To = time.Second, from, from+3000
	publish(0, "7", "other", from) // before the burst
	after, err := o.ends(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(0, "8", "x-0", from+100)
	publish(0, "9", "", 0)              // an event
	publish(0, "10", "x-0", from+1100)  // right
	publish(0, "11", "x-0", from+1100)  // the same fire again
	publish(0, "14", "x-0", from+2100)  // two numbers are left out
	publish(0, "14", "other", from+100) // a number twice
	publish(0, "15", "x-0", from+3100)  // one fire more
	publish(0, "16", "x-2", from+100)   // no such job
	publish(1, "2", "x-1", from+200)    // the first number is left out
	publish(1, "3", "x-1", from+1250)   // another offset
	publish(1, "4", "x-1", time.Now().Add(time.Hour).UnixMilli())
	got := make(map[int]int)
	checks, err := o.tally(t.Context(), after, s, func(job int, due, stored int64) {
		if stored < due {
			t.Errorf("job %d is stored %d ns early", job, due-stored)
		}
		got[job]++
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Checks{Expected: 6, Missing: 2, Duplicate: 2, Gaps: 3, Stray: 3}
	if checks != want || got[0] != 3 || got[1] != 1 {
		t.Errorf("checks are %+v, expected %+v; fires %v", checks, want, got)
	}

	s = newJobBurst("y-", 1, 1)
	s.From = time.Now().Add(time.Hour).UnixMilli()
	s.To = s.From + 1000
	after, err = o.ends(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(0, "17", "y-0", s.From)
	checks, err = o.tally(t.Context(), after, s, func(int, int64, int64) {})
	if want := (Checks{Expected: 1, Early: 1}); err != nil || checks != want {
		t.Errorf("checks are %+v, %v, expected %+v", checks, err, want)
	}
	for _, s := range o.streams {
		if info, err := s.Info(t.Context()); err != nil || info.State.Consumers != 0 {
			t.Errorf("%d consumers are left of reading, and slow down what is measured next; %v", info.State.Consumers, err)
		}
	}
}

func TestJobBurstStart(t *testing.T) {
	for _, fires := range []int{1, 2, 60} {
		s := newJobBurst("x-", 1, fires)
		s.spread = time.Second
		before := time.Now()
		s.start(2*time.Second, time.Second)
		first := time.UnixMilli(s.From)
		if first.Before(before.Add(3*time.Second-time.Millisecond)) || first.After(before.Add(2*time.Minute)) || s.From%1000 != 0 {
			t.Errorf("%d fires: the first is due at %s, %s from now", fires, first, first.Sub(before))
		}
		if first.Second()+fires > 60 || s.To != s.From+int64(fires)*1000 {
			t.Errorf("%d fires: from %s to %s", fires, first, time.UnixMilli(s.To))
		}
	}
}

func TestBadDispatchConfigs(t *testing.T) {
	for name, err := range map[string]error{
		"Triggers":     DispatchConfig{Triggers: 1}.Validate(),
		"CronPerS":     DispatchConfig{CronPerS: 16_000}.Validate(),
		"Pairs":        DispatchConfig{Pairs: -1}.Validate(),
		"PayloadBytes": DispatchConfig{PayloadBytes: 1}.Validate(),
		"Pause":        DispatchConfig{Pause: -1}.Validate(),
		"Partitions":   DispatchConfig{Partitions: -1}.Validate(),
		"PersistAsync": DispatchConfig{PersistAsync: true, Service: Service{Server: "nats://127.0.0.1:1"}}.Validate(),
		"Jobs":         BurstConfig{Jobs: 1}.Validate(),
		"SideRate":     BurstConfig{SideRate: -1}.Validate(),
		"Rounds":       BurstConfig{Rounds: -1}.Validate(),
		"its own":      BurstConfig{Partitions: 3, Service: Service{Server: "nats://127.0.0.1:1"}}.Validate(),
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []interface{ Validate() error }{DispatchConfig{}, BurstConfig{}} {
		if err := c.Validate(); err != nil {
			t.Errorf("the defaults of %T: %v", c, err)
		}
	}
}

func TestLeast(t *testing.T) {
	f := Figures{{"a_ratio", 0.85}}
	for limit, met := range map[float64]bool{0.84: true, 0.85: true, 0.86: false} {
		if got := newMinTarget(f, "a_ratio", limit); got.Met != met {
			t.Errorf("0.85 against at least %v: %t", limit, got.Met)
		}
	}
	if newMinTarget(f, "another", 0.1).Met {
		t.Error("a figure that is not there reached its target")
	}
	var table strings.Builder
	r := Result{Figures: f, Targets: []Target{newMinTarget(f, "a_ratio", 0.9), newTarget(f, "a_ratio", 0.9, 0), newTarget(f, "a_ratio", 0.1, 0.2)}}
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"target missed  a_ratio: 0.85 >= 0.9", "target met     a_ratio: 0.85 <= 0.9\n", "target missed  a_ratio: 0.85 <= 0.1 (or 0.2, three times the bare sleep)\n"} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("no %q in\n%s", line, &table)
		}
	}
}
