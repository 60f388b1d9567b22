package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/bench"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// The test binary is the worker and the NATS peer too, as the command is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "worker" || os.Args[1] == "nats-server") {
		main()
		return
	}
	os.Exit(m.Run())
}

// The message schedules of NATS need no installed server. What the harness does with them it does with all systems.
func TestRun(t *testing.T) {
	for workload, args := range map[string][]string{
		"lateness": {"--rates", "200", "--duration", "1s"},
		"burst":    {"--jobs", "2000"},
		"commands": {"--callers", "4", "--creates", "200ms"},
	} {
		t.Run(workload, func(t *testing.T) {
			t.Parallel()
			dir, out := filepath.Join(t.TempDir(), "workspace"), t.TempDir()
			var stdout, stderr bytes.Buffer
			args := append([]string{"run", "--dir", dir, "--out", out, "--systems", "nats-schedules,nats-schedules-tuned", "--workloads", workload}, args...)
			if err := command(t.Context(), args, nil, &stdout, &stderr); err != nil {
				t.Fatalf("%v\n%s", err, &stderr)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there: %v", dir, err)
			}
			if machine, _, _ := strings.Cut(stdout.String(), "\n"); strings.Contains(machine, "page cache") {
				t.Errorf("the line for all systems says what is on disk when of one of them:\n%s", machine)
			}
			for _, key := range []string{"nats-schedules", "nats-schedules-tuned"} {
				if !strings.Contains(stdout.String(), "\n"+key+" ") {
					t.Errorf("the table has no %s:\n%s", key, &stdout)
				}
			}
			files, err := filepath.Glob(filepath.Join(out, "*.json"))
			if err != nil || len(files) != 2 {
				t.Fatalf("results %q, %v; want two", files, err)
			}
			for _, file := range files {
				checkResult(t, workload, file)
			}
		})
	}
}

func checkResult(t *testing.T, workload, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Workload != workload || r.Machine.Cores == 0 || !strings.Contains(r.Machine.Sync, "page cache") {
		t.Errorf("%s is of %s on %s", file, r.Workload, r.Machine)
	}
	if strings.Contains(r.Machine.Carillon, "00010101") {
		t.Errorf("%s: carillon %s is no version", file, r.Machine.Carillon)
	}
	figure := map[string]string{"lateness": "received_p50_ms", "burst": "drained_per_s", "commands": "creates_per_s"}[workload]
	if r.Figures.Get(figure) <= 0 {
		t.Errorf("%s: %s is %v", file, figure, r.Figures.Get(figure))
	}
	f := r.Figures
	switch workload {
	case "commands":
		return
	case "burst": // drained_s is when the last job came, which is also the latest, and none came before first_ms
		last, first := f.Get("drained_s"), f.Get("first_ms")
		if n := f.Get("drained_per_s") * last; n < 1990 || n > 2010 {
			t.Errorf("%s: %v/s for %v s are %v jobs, want 2000", file, f.Get("drained_per_s"), last, n)
		}
		if most := f.Get("received_max_ms"); most < 990*last || most > 1010*last || first > f.Get("received_p50_ms")*1.01 {
			t.Errorf("%s: from %v ms to %v s, and the latest %v ms off: %+v", file, first, last, most, f)
		}
	case "lateness":
		if rate := f.Get("triggers_per_s"); rate <= 0 || rate > 200 {
			t.Errorf("%s: %v of 200 triggers a second", file, rate)
		}
	}
	if early, most := f.Get("early_max_ms"), f.Get("off_max_ms"); most < early*0.99 || most < f.Get("received_max_ms")*0.99 {
		t.Errorf("%s: at most %v ms off, but up to %v ms early and %v ms late", file, most, early, f.Get("received_max_ms"))
	}
	want := bench.Checks{Expected: map[string]int{"lateness": 200, "burst": 2000}[workload]}
	if r.Checks == nil || *r.Checks != want {
		t.Errorf("%s: checks are %+v, want %+v", file, r.Checks, want)
	}
}

func TestJudge(t *testing.T) {
	p := plan{Jobs: 4, From: time.Now().Add(time.Hour).UnixMilli(), Span: 400}
	s := newSink(4)
	pay := func(i int) []byte { return newJob(i, time.Time{}, payloadBytes).payload }
	s.handle(pay(probe), false, time.Time{})
	s.handle(pay(0), false, time.UnixMilli(p.From+7))
	s.handle(pay(0), false, time.Time{}) // once more, and not marked as a redelivery
	s.handle(pay(1), false, time.Time{})
	s.handle(pay(1), true, time.Time{})
	s.handle(pay(4), false, time.Time{}) // no job of the plan
	s.handle([]byte("no number"), false, time.Time{})
	select {
	case <-s.probed:
	default:
		t.Error("the probe was not noticed")
	}
	s.at[0].Store(p.due(0).Add(30 * time.Millisecond).UnixNano())
	s.at[1].Store(p.due(1).Add(-50 * time.Millisecond).UnixNano())
	r, err := s.judge(p)
	if err != nil {
		t.Fatal(err)
	}
	if want := (bench.Checks{Expected: 4, Early: 1, Missing: 2, Duplicate: 1, Stray: 2, Redelivered: 1}); r.Checks != want {
		t.Errorf("checks are %+v, want %+v", r.Checks, want)
	}
	got := []time.Duration{time.Duration(r.EarlyMax), time.Duration(r.First), time.Duration(r.Last), time.Duration(r.Stored)}
	for i, want := range []time.Duration{50, 30, 50, 7} {
		if got[i] != want*time.Millisecond {
			t.Errorf("early by, first, last, stored: %v, want 50, 30, 50 and 7 ms", got)
			break
		}
	}
	off, err := bench.DecodeHistogram(r.Off)
	if err != nil {
		t.Fatal(err)
	}
	received, err := bench.DecodeHistogram(r.Received)
	if err != nil {
		t.Fatal(err)
	}
	if off.Max() < 49_900 || off.Min() < 29_900 || received.Max() > 30_100 || received.Min() != 0 {
		t.Errorf("off from %d to %d µs, received from %d to %d", off.Min(), off.Max(), received.Min(), received.Max())
	}
}

func TestPayload(t *testing.T) {
	for _, i := range []int{probe, 0, 99_999, firstSingle + 5} {
		payload := newJob(i, time.Time{}, payloadBytes).payload
		if got, err := numberOf(payload); err != nil || got != i || len(payload) != payloadBytes || !json.Valid(payload) {
			t.Errorf("job %d: %d, %v from %s", i, got, err, payload)
		}
	}
	if _, err := numberOf([]byte(`"1"`)); err == nil {
		t.Error("a short payload has a number")
	}
}

// Carillon must be ahead of every tuned peer in everything, and without a flaw. If a figure is missing, it is not known to be.
func TestVerdict(t *testing.T) {
	c := config{systems: []string{"carillon", "river", "river-tuned"}, workloads: []string{"lateness", "burst"}, rates: []int{1000}}
	result := func(name string, tuned bool, workload string, rate int, figures ...bench.Figure) bench.Result {
		return bench.Result{Workload: workload, Params: params{System: name, Tuned: tuned, Rate: rate}, Figures: figures, Checks: &bench.Checks{Expected: 1000}}
	}
	for name, test := range map[string]struct {
		p50, p99, drained float64
		early             int
		tuned             bool
		spoil             func(*outcome)
		want              bool
		says              string
	}{
		"ahead":        {p50: 1, p99: 2, drained: 900, want: true},
		"ahead tuned":  {p50: 1, p99: 2, drained: 900, tuned: true, want: true},
		"later tuned":  {p50: 6, p99: 7, drained: 900, tuned: true},
		"later":        {p50: 6, p99: 7, drained: 900},
		"a later tail": {p50: 1, p99: 10, drained: 900},
		"no nearer":    {p50: 5, p99: 9, drained: 900},
		"drains less":  {p50: 1, p99: 2, drained: 700},
		"no more":      {p50: 1, p99: 2, drained: 800},
		"early": {
			p50: 1, p99: 2, drained: 900, early: 1,
			says: "NO  lateness at 1000/s: carillon has nothing early, missing or doubled\n",
		},
		"handled twice": {
			p50: 1, p99: 2, drained: 900, spoil: func(o *outcome) { o.results[1].Checks.Redelivered = 1 },
			says: "NO  burst: carillon has nothing early, missing or doubled\n",
		},
		"a peer without a figure": {
			p50: 1, p99: 2, drained: 900, spoil: func(o *outcome) { o.results[4].Figures = nil },
			says: "NO  burst, drained_per_s: river-tuned has no figure to compare with carillon\n",
		},
		"a peer without a result": {
			p50: 1, p99: 2, drained: 900, spoil: func(o *outcome) { o.results = o.results[:4] },
			says: "NO  burst, drained_per_s: river-tuned has no figure to compare with carillon\n",
		},
		"no figure of its own": {
			p50: 1, p99: 2, drained: 900, spoil: func(o *outcome) { o.results[0].Figures = nil },
			says: "NO  lateness at 1000/s, off_p99_ms: carillon has no figure to compare with river-tuned\n",
		},
		"no result of its own": {
			p50: 1, p99: 2, drained: 900, spoil: func(o *outcome) { o.results = o.results[2:] },
			says: "NO  burst, drained_per_s: carillon has no figure to compare with river-tuned\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := outcome{results: []bench.Result{
				result("carillon", test.tuned, "lateness", 1000, bench.Figure{Name: "off_p50_ms", Value: test.p50}, bench.Figure{Name: "off_p99_ms", Value: test.p99}),
				result("carillon", test.tuned, "burst", 0, bench.Figure{Name: "drained_per_s", Value: test.drained}),
				// Ahead of Carillon, but not tuned: it is not compared.
				result("river", false, "lateness", 1000, bench.Figure{Name: "off_p50_ms", Value: 0.1}, bench.Figure{Name: "off_p99_ms", Value: 0.1}),
				result("river", true, "lateness", 1000, bench.Figure{Name: "off_p50_ms", Value: 5}, bench.Figure{Name: "off_p99_ms", Value: 9}),
				result("river", true, "burst", 0, bench.Figure{Name: "drained_per_s", Value: 800}),
			}}
			o.results[0].Checks.Early = test.early
			c := c
			if test.tuned {
				c.systems = append([]string{"carillon-tuned"}, c.systems...)
			}
			if test.spoil != nil {
				test.spoil(&o)
			}
			var said bytes.Buffer
			if got := o.verdict(&said, c); got != test.want || !strings.Contains(said.String(), test.says) {
				t.Errorf("held: %v, want %v and %q:\n%s", got, test.want, test.says, &said)
			}
			if err := o.table(&said, c); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(said.String(), " 0.00") {
				t.Errorf("what was not measured is shown as 0:\n%s", &said)
			}
			if lines := strings.Count(said.String(), "\nriver-tuned"); lines != 2 {
				t.Errorf("river-tuned has %d lines, want one of figures and one of settings:\n%s", lines, &said)
			}
		})
	}
}

// A run that has nothing to compare says so, and does not fail for it.
func TestNothingToCompare(t *testing.T) {
	for _, c := range []config{
		{systems: []string{"carillon", "river"}, workloads: []string{"lateness", "burst"}, rates: []int{1000}},
		{systems: []string{"river-tuned"}, workloads: []string{"burst"}, rates: []int{1000}},
		{systems: []string{"carillon", "river-tuned"}, workloads: []string{"commands"}, rates: []int{1000}},
	} {
		var said bytes.Buffer
		if held := (&outcome{}).verdict(&said, c); !held || !strings.HasPrefix(said.String(), "nothing to compare:") {
			t.Errorf("%v of %v: held: %v, and it says %q", c.workloads, c.systems, held, &said)
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{"fly"},
		{"--systems", "cron"},
		{"--workloads", "idle"},
		{"--rates", "fast"},
		{"--duration", "10ms"},
		{"--jobs", "0"},
		{"--callers", "0"},
		{"--creates", "0s"},
		{"--carillon", "/nowhere/carillon"},
		{"--carillon", "/nowhere/carillon", "--systems", "carillon-tuned"},
		{"nats-server"},
	} {
		dir := filepath.Join(t.TempDir(), "workspace")
		if len(args) > 1 {
			args = append([]string{"run", "--dir", dir, "--out", t.TempDir()}, args...)
		}
		if err := command(t.Context(), args, nil, &bytes.Buffer{}, &bytes.Buffer{}); err == nil {
			t.Errorf("%q is taken", args)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q made a workspace", args)
		}
	}
}

// A server that is not installed is told of before anything is measured.
func TestMissingServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var log bytes.Buffer
	args := []string{"run", "--dir", filepath.Join(t.TempDir(), "workspace"), "--out", t.TempDir(), "--systems", "nats-schedules,asynq-tuned", "--workloads", "commands", "--creates", "100ms"}
	err := command(t.Context(), args, nil, &bytes.Buffer{}, &log)
	if err == nil || !strings.Contains(err.Error(), "asynq-tuned: no Redis server: ") {
		t.Errorf("without a Redis server it says %v", err)
	}
	if log.Len() > 0 {
		t.Errorf("it has begun: %s", &log)
	}
}

// A killed run leaves processes behind. The next one says so, and stop ends them, and no others.
func TestStopLeftovers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "workspace")
	s, err := openWorkspace(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openWorkspace(dir, ""); err == nil {
		t.Error("two runs share a workspace")
	}
	if err := command(t.Context(), []string{"stop", "--dir", dir}, nil, &bytes.Buffer{}, &bytes.Buffer{}); err == nil {
		t.Error("stop takes a run that is under way")
	}
	p, err := s.launch("sleeper", exec.Command("sleep", "1000"), syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	// A file of the workspace with the id of a process that is not the workspace's, as there may be after a reboot.
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Process.Kill(); err != nil {
			t.Errorf("stop ended a process that is not the workspace's: %v", err)
		}
		_ = other.Wait() // killed
	}()
	if err := os.WriteFile(s.path("other.pid"), []byte(jsonOf(t, other.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	s.lock.Close() // as the kernel does for a process that was killed

	if _, err := openWorkspace(dir, ""); err == nil || !strings.Contains(err.Error(), "peers-stop") {
		t.Errorf("a workspace with leftovers is opened: %v", err)
	}
	var said bytes.Buffer
	if err := command(t.Context(), []string{"stop", "--dir", dir}, nil, &said, &said); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(said.String(), "processes ended: 1;") {
		t.Errorf("stop says %q", &said)
	}
	<-p.exited
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace is still there: %v", err)
	}
}

// A result says which version of Carillon was measured, and not only which nats-server is in it.
func TestCarillonVersion(t *testing.T) {
	url := natstest.Start(t, &server.Options{}).ClientURL()
	c, err := openCarillon(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	nc := c.(*carillonClient).nc
	if _, err := nc.Subscribe("carillon.api.status", func(m *nats.Msg) {
		if err := m.Respond((&carillon.StatusReply{Versions: carillon.Versions{Carillon: "5d968561c9f0"}}).AppendJSON(nil)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	v, err := c.version(t.Context())
	if want := "5d968561c9f0, embedded nats-server " + nc.ConnectedServerVersion(); v != want || err != nil {
		t.Errorf("the version is %q, %v; want %q", v, err, want)
	}
}

// If a server ends instead of becoming ready, the error has what it printed.
func TestStartFailure(t *testing.T) {
	s, err := openWorkspace(filepath.Join(t.TempDir(), "workspace"), "")
	if err != nil {
		t.Fatal(err)
	}
	err = s.start(t.Context(), "broken", exec.Command("sh", "-c", "echo out of bells >&2; exit 3"), syscall.SIGTERM,
		func(context.Context) error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "out of bells") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("start says %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// If a measurement fails, its file is not the one of an earlier run.
func TestFailedRunLeavesNoResult(t *testing.T) {
	nowhere, err := exec.LookPath("false")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	others := []string{"burst-carillon-tuned.json", "lateness-2000-carillon.json", "notes.json"}
	for _, name := range append([]string{"burst-carillon.json", "lateness-1000-carillon.json"}, others...) {
		if err := os.WriteFile(filepath.Join(out, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"run", "--dir", filepath.Join(t.TempDir(), "workspace"), "--out", out, "--carillon", nowhere,
		"--systems", "carillon", "--workloads", "lateness,burst", "--rates", "1000",
	}
	if err := command(t.Context(), args, nil, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "burst of") {
		t.Errorf("the run ended with %v", err)
	}
	var left []string
	files, err := os.ReadDir(out)
	for _, f := range files {
		left = append(left, f.Name())
	}
	if err != nil || !slices.Equal(left, others) {
		t.Errorf("%q are there, %v, expected %q", left, err, others)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
