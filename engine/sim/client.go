package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// client sends commands, good and bad, and repeats some of them.
type client struct {
	w       *world
	jobs    []string
	sent    []command
	packed  [][]byte // the imports sent
	request int
}

// command is a command as it was published.
type command struct {
	verb, job, request, body string
}

func (c *client) init(w *world) {
	c.w = w
	for i := range 3 + w.rng.IntN(10) {
		c.jobs = append(c.jobs, fmt.Sprintf("job%d", i))
	}
}

// put is the body of a put, in the order of the protocol; the reference reads it with encoding/json.
type put struct {
	Schedule  string            `json:"schedule,omitempty"`
	Start     *time.Time        `json:"start,omitempty"`
	End       *time.Time        `json:"end,omitempty"`
	MaxFires  uint64            `json:"max_fires,omitempty"`
	Spread    string            `json:"spread,omitempty"`
	Misfire   string            `json:"misfire,omitempty"`
	Expires   string            `json:"expires,omitempty"`
	Topic     string            `json:"topic,omitempty"`
	Priority  string            `json:"priority,omitempty"`
	Payload   any               `json:"payload,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	IfVersion *uint64           `json:"if_version,omitempty"`
}

// headerOf is the name of the one header that some jobs have.
const headerOf = "Of"

// condition is the body of a delete, pause or resume.
type condition struct {
	IfVersion *uint64 `json:"if_version,omitempty"`
}

// badBodies are bodies of a put that are refused, each with its error code.
var badBodies = map[string]carillon.Code{
	`{`:                                carillon.CodeInvalidJSON,
	``:                                 carillon.CodeInvalidJSON,
	`{"schedule":"@every 0s"}`:         carillon.CodeInvalidSchedule,
	`{"schedule":"0 0 30 2 *"}`:        carillon.CodeInvalidSchedule,
	`{"schedule":"@every 1s","wat":1}`: carillon.CodeUnknownField,
	`{"schedule":"@every 1s","topic":"a..b"}`:           carillon.CodeInvalidTopic,
	`{"schedule":"0 0 * * *","zone":"Mars/Base"}`:       carillon.CodeInvalidZone,
	`{"schedule":"@every 1s","max_fires":0}`:            carillon.CodeInvalidField,
	`{"schedule":"@every 1s","headers":{"Nats-X":"1"}}`: carillon.CodeInvalidField,
}

// badOrder lists badBodies in a fixed order.
var badOrder = []string{
	`{`, ``, `{"schedule":"@every 0s"}`, `{"schedule":"0 0 30 2 *"}`, `{"schedule":"@every 1s","wat":1}`,
	`{"schedule":"@every 1s","topic":"a..b"}`, `{"schedule":"0 0 * * *","zone":"Mars/Base"}`,
	`{"schedule":"@every 1s","max_fires":0}`, `{"schedule":"@every 1s","headers":{"Nats-X":"1"}}`,
}

func (c *client) command() {
	w := c.w
	job := c.jobs[w.rng.IntN(len(c.jobs))]
	switch d := w.rng.IntN(100); {
	case d < 6:
		c.garbage(job)
	case d < 14 && len(c.sent) > 0:
		c.send(c.sent[w.rng.IntN(len(c.sent))])
	case d < 22:
		c.imports()
	case d < 60:
		c.send(command{"put", job, c.name(), c.put()})
	case d < 64: // a burst that is due at once
		at := w.truth + w.skew + w.rng.Int64N(3000)
		for i := range 5 + w.rng.IntN(25) {
			p := put{Schedule: "@at " + millis(at).Format(time.RFC3339Nano), Priority: c.priority()}
			c.send(command{"put", fmt.Sprintf("burst%d", i), "", encode(p)})
		}
	case d < 70:
		c.send(command{"delete", job, c.name(), c.condition()})
	case d < 79:
		c.send(command{"pause", job, c.name(), c.condition()})
	case d < 90:
		c.send(command{"resume", job, c.name(), c.condition()})
	default:
		body := ""
		if w.chance(50) {
			body = fmt.Sprintf(`{"payload":%d}`, w.rng.IntN(100))
		}
		c.send(command{"fire", job, c.name(), body})
	}
}

func (c *client) name() string {
	if c.w.chance(60) {
		return ""
	}
	c.request++
	return fmt.Sprintf("r%d", c.request)
}

func (c *client) send(m command) {
	w := c.w
	c.sent = append(c.sent, m)
	var header []engine.Field
	if m.request != "" {
		header = []engine.Field{{Name: carillon.HeaderRequest, Value: m.request}}
	}
	subject := w.layout.LogSubject(engine.PartitionOf(m.job, w.layout.Partitions), m.verb) + "." + m.job
	seq := w.append(subject, header, []byte(m.body))
	w.note("%s %s %s %s: %d", m.verb, m.job, m.request, m.body, seq)
}

// imports sends a few puts in one record, as a node does. Some of them are for another partition, or invalid.
func (c *client) imports() {
	w := c.w
	p := w.rng.IntN(w.layout.Partitions)
	if n := len(c.packed); n > 0 && w.chance(15) {
		w.append(w.layout.LogSubject(p, "import"), nil, c.packed[w.rng.IntN(n)])
		return
	}
	var pack []engine.PackedJob
	for range 1 + w.rng.IntN(8) {
		id := c.jobs[w.rng.IntN(len(c.jobs))]
		if engine.PartitionOf(id, w.layout.Partitions) != p && !w.chance(3) {
			continue
		}
		body := c.put()
		if w.chance(4) {
			body = `{"schedule":"@every 0s"}`
		}
		job, ifVersion, err := carillon.ParsePut([]byte(body))
		if err != nil {
			panic(err) // the client wrote it
		}
		job.ID = id
		j := engine.Pack(&job, ifVersion, c.name())
		j.Paused, j.IfAbsent = w.chance(15), w.chance(15)
		if w.chance(15) {
			j.State = c.state()
		}
		pack = append(pack, j)
	}
	if len(pack) == 0 {
		return
	}
	b := engine.EncodePack(pack)
	c.packed = append(c.packed, b)
	seq := w.append(w.layout.LogSubject(p, "import"), nil, b)
	w.note("import of %d jobs from %s on: %d", len(pack), pack[0].ID, seq)
}

// state makes a state for a job that existed elsewhere before.
func (c *client) state() *engine.JobState {
	w := c.w
	accepted := time.UnixMilli(w.truth + w.skew).Add(-c.span())
	s := carillon.JobState{Version: w.rng.Uint64N(6), Accepted: accepted, From: accepted.Add(c.span()), Fires: w.rng.Uint64N(4), Skipped: w.rng.Uint64N(3)}
	if s.Fires > 0 {
		s.Last = accepted.Add(c.span())
	}
	if w.chance(50) {
		s.Missed = ptr(carillon.Misfire(w.rng.IntN(3)))
	}
	return engine.StateOf(&s)
}

func (c *client) span() time.Duration { return time.Duration(c.w.rng.IntN(20_000)) * time.Millisecond }

func (c *client) condition() string {
	if c.w.chance(70) {
		return ""
	}
	return encode(condition{ptr(c.w.rng.Uint64N(4))})
}

func (c *client) priority() string { return []string{"", "high", "low"}[c.w.rng.IntN(3)] }

func millis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs
	}
	return string(b)
}

func (c *client) put() string {
	w := c.w
	now := w.truth + w.skew
	pick := func(of ...string) string { return of[w.rng.IntN(len(of))] }
	p := put{Priority: c.priority()}
	switch d := w.rng.IntN(100); {
	case d < 25:
		p.Schedule = "@at " + millis(now+w.rng.Int64N(6000)-1000).Format(time.RFC3339Nano)
	case d < 40:
		p.Schedule = "@in " + pick("1ms", "20ms", "700ms", "3s", "1m30s")
	case d < 70:
		p.Schedule = "@every " + pick("40ms", "250ms", "900ms", "1s", "1001ms", "7s", "1m", "1h")
	case d < 95:
		p.Schedule = pick("* * * * * *", "*/10 * * * * *", "* * * * *", "0 * * * *")
	}
	if w.chance(15) {
		p.Start = ptr(millis(now + w.rng.Int64N(8000) - 4000))
	}
	if w.chance(15) {
		p.End = ptr(millis(now + 5000 + w.rng.Int64N(20_000)))
	}
	if w.chance(20) {
		p.MaxFires = 1 + w.rng.Uint64N(5)
	}
	if w.chance(20) {
		p.Spread = pick("10ms", "1s", "30s")
	}
	if w.chance(30) {
		p.Expires = pick("1ms", "100ms", "2s", "1m")
	}
	p.Misfire = pick("", "fire_once", "skip")
	if w.chance(15) && p.Schedule != "@every 40ms" {
		p.Misfire = "fire_all"
	}
	if w.chance(40) {
		p.Payload = w.rng.IntN(1000)
	}
	if w.chance(30) {
		p.Topic = pick("a", "a.b", "default")
	}
	if w.chance(20) {
		p.Headers = map[string]string{headerOf: pick("x", "y")}
	}
	if w.chance(15) {
		p.IfVersion = ptr(w.rng.Uint64N(4))
	}
	return encode(p)
}

// garbage sends something that has no effect, or only an event.
func (c *client) garbage(job string) {
	w := c.w
	p := w.rng.IntN(w.layout.Partitions)
	switch w.rng.IntN(8) {
	case 0:
		c.send(command{"put", job, "", badOrder[w.rng.IntN(len(badOrder))]})
	case 1: // a kind of record of the engine's as a verb
		c.send(command{[]string{"tick", "claim", "heal", "wat"}[w.rng.IntN(4)], job, "", ""})
	case 2:
		c.send(command{"put", strings.Repeat("x", 200), "", `{}`})
	case 3: // stored untransformed
		seq := w.append("carillon.cmd.put.a*", nil, []byte(`{}`))
		w.note("put a*: %d", seq)
	case 4: // to a partition it does not hash to
		subject := w.layout.LogSubject((engine.PartitionOf(job, w.layout.Partitions)+1)%w.layout.Partitions, "put") + "." + job
		if w.layout.Partitions > 1 {
			w.append(subject, nil, []byte(`{}`))
		}
	case 5: // malformed records of the engine's own
		kind := []string{"tick", "claim", "heal", "signal", "import", "disk"}[w.rng.IntN(6)]
		body := make([]byte, w.rng.IntN(20))
		for i := range body {
			body[i] = byte(w.rng.IntN(256))
		}
		w.append(w.layout.LogSubject(p, kind), nil, body)
	case 6: // a forged tick
		w.append(w.layout.LogSubject(p, "tick"), nil, engine.EncodeTicks([]engine.Tick{{Partition: p, To: 1 << 60, Epoch: w.rng.Uint64N(5), Limit: 1 << 60}}))
	case 7: // a claim under older rules than those in force
		if w.claimOf(p) == 0 {
			return
		}
		old := engine.Rules()
		old.Node, old.TZData = "old", "1999a"
		w.append(w.layout.LogSubject(p, "claim"), nil, old.Encode())
	}
}

// staleTick appends a tick of a former owner or of nobody: of any epoch but the one in force.
func (w *world) staleTick() {
	p := w.rng.IntN(w.layout.Partitions)
	t := engine.Tick{
		Partition: p, To: w.truth + w.skew + w.rng.Int64N(2000) - 1000, Epoch: 1 + w.rng.Uint64N(w.log.Last()+1), Limit: w.rng.Uint64N(10),
		Acked: engine.Acked{Output: w.rng.Uint64N(20), Seq: w.rng.Uint64N(20)},
	}
	if claim := w.claimOf(p); t.Epoch >= claim && claim > 0 {
		t.Epoch = w.rng.Uint64N(claim)
	}
	seq := w.append(w.layout.LogSubject(engine.AllPartitions, "tick"), nil, engine.EncodeTicks([]engine.Tick{t}))
	w.note("a stale tick %+v at %d", t, seq)
}

// claimOf returns the sequence of a partition's newest claim, which is in force or will be; 0: none.
func (w *world) claimOf(p int) uint64 {
	for seq := w.log.Last(); seq > 0; seq-- {
		if r, ok := w.records[seq]; ok {
			if e := w.layout.Decode(&r); e.Kind == engine.KindClaim && e.Partition == p && e.Claim.Node != "old" {
				return seq
			}
		}
	}
	return 0
}
