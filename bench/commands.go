package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// CommandsConfig says how RunCommands runs. The zero value of a field is its default.
type CommandsConfig struct {
	Service Service `json:"-"`
	// ClientsCommand runs Clients in a process of its own; the engine's URL is added to it. Default: this
	// binary's own "bench clients --server".
	ClientsCommand []string `json:"-"`
	// ImportCommand imports a file of jobs in NDJSON; the engine's URL and the file are added to it, and it must print
	// what `carillon job import --json` prints. Default: this binary's own "job import --json --server".
	ImportCommand []string `json:"-"`

	Jobs         int           `json:"jobs"`          // how many the many clients create, and then update; default 300,000
	Imports      int           `json:"imports"`       // jobs imported; default 200,000
	Clients      int           `json:"clients"`       // connections of the many clients; default 64
	Window       int           `json:"window"`        // commands that each connection has under way; default 8
	Offered      int           `json:"offered_per_s"` // creates a second of the open loop; default 30,000
	Duration     time.Duration `json:"-"`             // of the open loop; default 10 s
	Seconds      float64       `json:"duration_s"`    // Duration, as it stands in the result
	Rounds       int           `json:"rounds"`        // of the single client, a second for each kind of command; default 3
	RoundTime    time.Duration `json:"-"`             // the time for each kind; default that second
	PayloadBytes int           `json:"payload_bytes"` // default 200

	Progress func(step string, done, total int) `json:"-"`
}

func (c CommandsConfig) withDefaults() (CommandsConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	exe, err := os.Executable()
	if err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	if len(c.ClientsCommand) == 0 {
		c.ClientsCommand = []string{exe, "bench", "clients", "--server"}
	}
	if len(c.ImportCommand) == 0 {
		c.ImportCommand = []string{exe, "job", "import", "--json", "--server"}
	}
	c.Jobs = cmp.Or(c.Jobs, 300_000)
	c.Imports = cmp.Or(c.Imports, 200_000)
	c.Clients = cmp.Or(c.Clients, 64)
	c.Window = cmp.Or(c.Window, 8)
	c.Offered = cmp.Or(c.Offered, 30_000)
	c.Duration = cmp.Or(c.Duration, 10*time.Second)
	c.Seconds = c.Duration.Seconds()
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.RoundTime = cmp.Or(c.RoundTime, time.Second)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c CommandsConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Jobs < 2:
		return fmt.Errorf("bench: Jobs is %d, must be 2 or more", c.Jobs)
	case c.Imports < 1:
		return fmt.Errorf("bench: Imports is %d, must be 1 or more", c.Imports)
	case c.Clients < 1 || c.Clients > 10_000:
		return fmt.Errorf("bench: Clients is %d, must be 1 to 10,000", c.Clients)
	case c.Window < 1:
		return fmt.Errorf("bench: Window is %d, must be 1 or more", c.Window)
	case c.Offered < 1 || c.Offered > 1_000_000:
		return fmt.Errorf("bench: Offered is %d, must be 1 to 1,000,000 creates a second", c.Offered)
	case c.offers() < 1:
		return fmt.Errorf("bench: Duration is %s, must hold one create at least", c.Duration)
	case c.Rounds < 1:
		return fmt.Errorf("bench: Rounds is %d, must be 1 or more", c.Rounds)
	case c.RoundTime < 0:
		return fmt.Errorf("bench: RoundTime %s is negative", c.RoundTime)
	case c.PayloadBytes < 3 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 3 to %d", c.PayloadBytes, carillon.MaxPayload)
	}
	return nil
}

// offers is how many jobs the open loop creates.
func (c *CommandsConfig) offers() int { return int(float64(c.Offered) * c.Duration.Seconds()) }

// Limits of commands.
const (
	leastCreates     = 30_000
	limitCreateP99   = 50 // ms, at the offered rate
	limitSingleRatio = 2  // times the sum of a log round trip (in one process, if the engine embeds its server) and a synced commit, at p50
)

// RunCommands measures durable commands: each counts when its reply has arrived, which says that it is in
// the log and synced.
//
//   - One client, one command at a time, beside the log's round trip and a synced commit, in turns.
//   - Many clients in a closed loop: each keeps a few commands under way; this is the rate (creates_per_s).
//   - The same clients in an open loop of a fixed rate, whatever the answers: this is the latency
//     (latency_p99_ms), from when a command was to be sent. A refused command counts as the longest latency of all.
//   - An import of a file.
//
// At the end every job is read back. In the Checks Expected are the jobs that must be there, Missing those of them that
// are not, and Stray the jobs that are not as they were acknowledged.
func RunCommands(ctx context.Context, c CommandsConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "commands", Params: c, Checks: &Checks{}, Histograms: make(map[string]string)}
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	run := runName()
	defer func() { err = errors.Join(err, e.cleanUp(ctx, nc, run)) }()
	m := &commands{
		CommandsConfig: c, engine: e, nc: nc, run: run, result: &r,
		due: time.Now().Add(24 * time.Hour).UnixMilli(), want: make(map[string]group),
	}
	began, cpu := time.Now(), e.usage().cpu
	for _, part := range []func(context.Context) error{m.runSingle, m.runClients, m.runImport} {
		if err := part(ctx); err != nil {
			return r, err
		}
	}
	if u := e.usage(); u.known {
		r.Figures.add("engine_cpu_percent", 100*(u.cpu-cpu).Seconds()/time.Since(began).Seconds())
		r.Figures.add("engine_resident_mib", u.residentMiB)
	}
	if err := m.readBack(ctx); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	r.Targets = []Target{
		newMinTarget(r.Figures, "creates_per_s", leastCreates),
		newTarget(r.Figures, "latency_p99_ms", limitCreateP99, 0),
		newTarget(r.Figures, "single_latency_ratio", limitSingleRatio, 0),
	}
	return r, nil
}

// commands is a run.
type commands struct {
	CommandsConfig
	engine *engine
	nc     *nats.Conn
	run    string
	due    int64            // of the first job of each group, unix ms
	want   map[string]group // by prefix
	result *Result
}

// group describes the jobs of one prefix as they were acknowledged.
type group struct {
	from, to int // jobs that must be there
	round    int // the round of their last put, which made version round+1
	refused  map[int]bool
}

func (m *commands) prefix(kind string) string { return m.run + "-" + kind + "-" }

// runClients measures the many clients, in a process of their own.
func (m *commands) runClients(ctx context.Context) error {
	p, err := startClients(ctx, m.ClientsCommand, m.engine.url, clientsStart{Connections: m.Clients, PayloadBytes: m.PayloadBytes, Due: m.due})
	if err != nil {
		return err
	}
	defer p.stop()
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() }) // fails only when it has ended, which is as good
	defer stop()
	f := &m.result.Figures
	closed, open := m.prefix("many"), m.prefix("open")
	for _, step := range []struct {
		name    string // of figures
		latency string
		order   clientsOrder
	}{
		{"creates", "saturated_latency", clientsOrder{Verb: carillon.VerbPut, Prefix: closed, N: m.Jobs, Window: m.Window}},
		{"updates", "update_latency", clientsOrder{Verb: carillon.VerbPut, Prefix: closed, N: m.Jobs, Round: 1, Window: m.Window}},
		{"deletes", "delete_latency", clientsOrder{Verb: carillon.VerbDelete, Prefix: closed, N: m.Jobs / 2, Window: m.Window}},
		{"offered_creates", "latency", clientsOrder{Verb: carillon.VerbPut, Prefix: open, N: m.offers(), Rate: m.Offered}},
	} {
		cpu := m.engine.usage().cpu
		report, err := p.ask(step.order, func(done int) { m.Progress(strings.ReplaceAll(step.name, "_", " "), done, step.order.N) })
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		h, err := decode(report.Latency)
		if err != nil {
			return err
		}
		f.add(step.name+"_per_s", float64(step.order.N-len(report.Refused))/max(report.Seconds, 1e-3))
		f.quantiles(step.latency, h, 50, 99, 99.9, 100)
		if u := m.engine.usage(); u.known {
			f.add(step.name+"_engine_cpu_us_per_command", float64((u.cpu-cpu).Microseconds())/float64(step.order.N))
		}
		if len(report.Refused) == 0 {
			m.result.Histograms[step.latency+"_us"] = report.Latency
		}
		switch {
		case step.order.Rate > 0:
			f.add("offered_refused", float64(len(report.Refused)))
			refused := make(map[int]bool)
			for _, i := range report.Refused {
				refused[i] = true
			}
			m.want[open] = group{to: step.order.N, refused: refused}
		case len(report.Refused) > 0:
			return fmt.Errorf("bench: %d %s were refused: %s", len(report.Refused), step.name, report.Refusal)
		}
	}
	m.want[closed] = group{from: m.Jobs / 2, to: m.Jobs, round: 1}
	return nil
}

// runImport imports a file of jobs by the command that a user would run.
func (m *commands) runImport(ctx context.Context) (err error) {
	own, err := makeScratch(m.Service.Data)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, own.remove()) }()
	prefix, path := m.prefix("import"), filepath.Join(own.dir, "jobs.ndjson")
	if err := m.writeJobs(path, prefix); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	m.Progress("importing", 0, m.Imports)
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, m.ImportCommand[0], append(m.ImportCommand[1:len(m.ImportCommand):len(m.ImportCommand)], m.engine.url, path)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("bench: import: %w: %s", err, &stderr))
	}
	var result struct {
		Imported int     `json:"imported"`
		Elapsed  float64 `json:"elapsed_s"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		return fmt.Errorf("bench: import: %w in %q", err, &stdout)
	}
	if result.Imported != m.Imports {
		return fmt.Errorf("bench: %d jobs were imported, not %d", result.Imported, m.Imports)
	}
	m.want[prefix] = group{to: m.Imports}
	m.result.Figures.add("imports_per_s", float64(result.Imported)/max(result.Elapsed, 1e-3))
	return nil
}

func (m *commands) writeJobs(path, prefix string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	var line []byte
	payload := payloadOf(m.PayloadBytes)
	for i := range m.Imports {
		j := commandJob(prefix, i, 0, m.due, payload)
		line = append(j.AppendJSON(fmt.Appendf(line[:0], `{"id":%q,"spec":`, j.ID)), '}', '\n')
		if _, err := w.Write(line); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Flush(), f.Close())
}

// readBack lists every job of the run and compares it with what was acknowledged.
func (m *commands) readBack(ctx context.Context) error {
	checks := m.result.Checks
	payload := payloadOf(m.PayloadBytes)
	present := 0
	for _, g := range m.want {
		checks.Expected += g.to - g.from
		for i := range g.refused {
			if i >= g.from && i < g.to {
				checks.Expected--
			}
		}
	}
	began, read, before := time.Now(), 0, ""
	list := carillon.ListRequest{Selection: carillon.Selection{Prefix: m.run}, Limit: carillon.MaxListLimit}
	for job, err := range carillon.Connect(m.nc, carillon.WithNames(m.engine.Names)).List(ctx, list) {
		if err != nil {
			return fmt.Errorf("bench: reading back: %w", err)
		}
		read++
		m.Progress("reading back", read, checks.Expected)
		at := strings.LastIndexByte(job.ID, '-') + 1
		g := m.want[job.ID[:at]]
		i, err := strconv.Atoi(job.ID[at:])
		if err == nil && g.refused[i] {
			continue // there was no answer, so nobody knows
		}
		if err != nil || i < g.from || i >= g.to || job.ID == before {
			checks.Stray++
			continue
		}
		before = job.ID
		want := commandJob(job.ID[:at], i, g.round, m.due, payload)
		if present++; job.Version != uint64(g.round)+1 || !bytes.Equal(job.Spec.Payload, want.Payload) || job.Next.UnixMilli() != m.due+int64(i) {
			checks.Stray++
		}
	}
	checks.Missing = checks.Expected - present
	m.result.Figures.add("read_back_jobs", float64(read))
	m.result.Figures.add("read_back_per_s", float64(read)/max(time.Since(began).Seconds(), 1e-3))
	return nil
}
