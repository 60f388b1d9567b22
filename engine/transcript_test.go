package engine

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/carillon-scheduler/carillon"
)

// The transcripts in testdata are the machine's specification. Each line of a command is one record or
// one query. Times are offsets from midnight, so +1.5s is a second and a half into the day.
//
//	<time> put|delete|pause|resume|fire <job> [request=<id>] [<body>]
//	<time> claim [node=<name>] [logic=<n>] [tzdata=<version>] [retention=<d>] [kept=<n>]
//	<time> tick [to=<time>] [limit=<n>] [epoch=<n>] [acked=<output>]
//	<time> disk low=<0 or 1> [epoch=<n>]
//	<time> import <job> [paused=1] [absent=1] [request=<id>] [<state>] [<body>] [| <job> …]
//	<time> record <subject> [<body>]
//	repeat <n> <any of these>
//	get <job>
//	restore               take a checkpoint, and go on with the machine restored from it
//
// A <state> is version=<n> accepted=<time> from=<time> last=<time> fires=<n> skipped=<n> missed=<policy>.
//
// A record's answer is what changed or why not; a tick's is what the machine emitted and its next deadline.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			var b strings.Builder
			for line := range strings.Lines(d.Input) {
				answer, err := s.run(strings.TrimSpace(line))
				if err != nil {
					d.Fatalf(t, "%s: %v", line, err)
				}
				b.WriteString(answer)
			}
			return b.String()
		})
	})
}

var midnight = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

type script struct {
	saved
	seq     uint64
	epoch   uint64
	printed uint64
}

var oneOfOne = Layout{Prefix: "carillon", Partitions: 1}

func newScript() *script { return &script{saved: saved{m: New(oneOfOne, 0)}} }

// run carries out a line, and says what came of it.
func (s *script) run(line string) (string, error) {
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return "", nil
	case words[0] == "repeat":
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return "", err
		}
		var answer string
		for ; n > 0 && err == nil; n-- {
			answer, err = s.run(strings.Join(words[2:], " "))
		}
		return answer, err
	case words[0] == "get":
		r, ok := s.m.Job(words[1], nil)
		if !ok {
			return words[1] + ": no such job\n", nil
		}
		return fmt.Sprintf("%s: version=%d %s next=%s last=%s fires=%d skipped=%d\n",
			r.ID, r.Version, r.Status, clockTime(r.Next), clockTime(r.LastScheduled), r.Fires, r.Skipped), nil
	case words[0] == "restore":
		if err := s.checkpoint(3); err != nil {
			return "", err
		}
		return "", s.reopen()
	}
	r, err := s.record(words)
	if err != nil {
		return "", err
	}
	return s.apply(&r), nil
}

// record makes the record of a line.
func (s *script) record(words []string) (r Record, err error) {
	at, err := scriptTime(words[0])
	if err != nil {
		return r, err
	}
	s.seq++
	r.Seq, r.Time = s.seq, at.UnixNano()
	options := make(map[string]string)
	rest := words[2:]
	for len(rest) > 0 && strings.Contains(rest[0], "=") && !strings.HasPrefix(rest[0], "{") {
		name, value, _ := strings.Cut(rest[0], "=")
		options[name] = value
		rest = rest[1:]
	}
	switch words[1] {
	case "claim":
		claim, err := scriptClaim(options)
		if err != nil {
			return r, err
		}
		r.Subject, r.Data = oneOfOne.LogSubject(0, "claim"), claim.Encode()
	case "tick":
		tick, err := s.tick(at, options)
		if err != nil {
			return r, err
		}
		r.Subject, r.Data = oneOfOne.LogSubject(0, "tick"), EncodeTicks([]Tick{tick})
	case "disk":
		d := Disk{Epoch: s.epoch, Low: options["low"] == "1"}
		if epoch, ok := options["epoch"]; ok {
			d.Epoch, _ = strconv.ParseUint(epoch, 10, 64)
		}
		r.Subject, r.Data = oneOfOne.LogSubject(0, "disk"), d.Encode()
	case "import":
		pack, err := scriptPack(strings.Split(strings.Join(words[2:], " "), " | "))
		if err != nil {
			return r, err
		}
		r.Subject, r.Data = oneOfOne.LogSubject(0, "import"), EncodePack(pack)
	case "record":
		r.Subject, r.Data = rest[0], []byte(strings.Join(rest[1:], " "))
	default:
		// Words before the body: the job, and then options.
		job := rest[0]
		rest = rest[1:]
		for len(rest) > 0 && strings.HasPrefix(rest[0], "request=") {
			r.Header = append(r.Header, Field{carillon.HeaderRequest, strings.TrimPrefix(rest[0], "request=")})
			rest = rest[1:]
		}
		r.Subject = "carillon.log.0." + words[1] + "." + job
		r.Data = []byte(strings.Join(rest, " "))
	}
	return r, nil
}

// scriptTime reads a time, an offset from midnight.
func scriptTime(text string) (time.Time, error) {
	d, err := time.ParseDuration(strings.TrimPrefix(text, "+"))
	return midnight.Add(d), err
}

func scriptClaim(options map[string]string) (Claim, error) {
	c := Rules()
	c.Node, c.RetentionMS, c.CompletedMax = "a", time.Hour.Milliseconds(), 1000
	for name, value := range options {
		n, _ := strconv.Atoi(value)
		switch name {
		case "node":
			c.Node = value
		case "logic":
			c.Logic = n
		case "tzdata":
			c.TZData = value
		case "kept":
			c.CompletedMax = n
		case "retention":
			d, err := time.ParseDuration(value)
			if err != nil {
				return Claim{}, err
			}
			c.RetentionMS = d.Milliseconds()
		}
	}
	return c, nil
}

// tick makes the tick of the script's owner at a time, unless options say otherwise.
func (s *script) tick(at time.Time, options map[string]string) (Tick, error) {
	tick := Tick{To: at.UnixMilli(), Epoch: s.epoch, Limit: 100}
	for name, value := range options {
		n, _ := strconv.ParseUint(value, 10, 64)
		switch name {
		case "to":
			to, err := scriptTime(value)
			if err != nil {
				return Tick{}, err
			}
			tick.To = to.UnixMilli()
		case "limit":
			tick.Limit = n
		case "epoch":
			tick.Epoch = n
		case "acked":
			tick.Acked = Acked{n, n}
		}
	}
	return tick, nil
}

// apply gives a record to the machine, and says what came of it.
func (s *script) apply(r *Record) string {
	e := oneOfOne.Decode(r)
	result, err := s.m.Apply(&e)
	switch {
	case err != nil:
		return fmt.Sprintf("stop: %v\n", err)
	case result.Err != nil:
		return fmt.Sprintf("refused: %v\n", result.Err)
	case e.Kind == KindGarbage:
		return "garbage\n"
	case e.Kind == KindClaim:
		if result.Epoch == 0 {
			return "void\n"
		}
		s.epoch = result.Epoch
		return fmt.Sprintf("epoch %d\n", result.Epoch)
	case e.Kind == KindDisk:
		return fmt.Sprintf("disk low: %t\n", s.m.Stats().DiskLow)
	case e.Kind == KindTick:
		return s.emitted()
	case e.Kind == KindImport:
		var b strings.Builder
		for i, o := range result.Jobs {
			fmt.Fprintf(&b, "%s: %s", e.Pack[i].ID, outcomeText(o))
		}
		return b.String()
	}
	return outcomeText(Outcome{Changed: result.Changed})
}

func outcomeText(o Outcome) string {
	switch {
	case o.Err != nil:
		return fmt.Sprintf("refused: %v\n", o.Err)
	case o.Changed:
		return "ok\n"
	}
	return "unchanged\n"
}

// scriptPack reads the jobs of an import. A body that is not a job is packed as it is.
func scriptPack(texts []string) (pack []PackedJob, err error) {
	for _, text := range texts {
		head, body, _ := strings.Cut(text, " {")
		body = "{" + body
		words := strings.Fields(head)
		p := PackedJob{Spec: []byte(body)}
		if job, ifVersion, err := carillon.ParsePut([]byte(body)); err == nil {
			p = Pack(&job, ifVersion, "")
		}
		p.ID = words[0]
		for _, option := range words[1:] {
			name, value, _ := strings.Cut(option, "=")
			switch name {
			case "paused":
				p.Paused = true
				continue
			case "absent":
				p.IfAbsent = true
				continue
			case "request":
				p.Request = value
				continue
			}
			if p.State == nil {
				p.State = &JobState{}
			}
			if err := p.State.scan(name, value); err != nil {
				return nil, err
			}
		}
		pack = append(pack, p)
	}
	return pack, nil
}

func (s *JobState) scan(name, value string) error {
	if at, ok := map[string]*int64{"accepted": &s.Accepted, "from": &s.From, "last": &s.Last}[name]; ok {
		then, err := scriptTime(value)
		*at = then.UnixMilli()
		return err
	}
	if name == "missed" {
		policy, _ := carillon.ParseMisfire(value)
		s.Missed = policyOf(policy)
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 64)
	*map[string]*uint64{"version": &s.Version, "fires": &s.Fires, "skipped": &s.Skipped}[name] = n
	return err
}

func (s *script) emitted() string {
	var b strings.Builder
	outputs, _ := s.m.Outbox(max(s.printed, s.m.Acked().Output))
	for _, o := range outputs {
		s.printed = o.Number
		switch o.Kind {
		case OutputEvent:
			fmt.Fprintf(&b, "#%d %s %s\n", o.Number, o.Subject(oneOfOne, 0), o.Body)
		default:
			fmt.Fprintf(&b, "#%d %s %s v%d due=%s", o.Number, o.Subject(oneOfOne, 0), strings.Replace(o.ID(), strconv.FormatInt(o.Scheduled, 10), clockTime(time.UnixMilli(o.Scheduled)), 1), o.Version, clockTime(time.UnixMilli(o.Due)))
			if o.Missed > 0 {
				fmt.Fprintf(&b, " missed=%d", o.Missed)
			}
			if o.Payload() != "" {
				fmt.Fprintf(&b, " %s", o.Payload())
			}
			b.WriteByte('\n')
		}
	}
	if at, ok := s.m.NextDeadline(); ok {
		fmt.Fprintf(&b, "next %s\n", clockTime(time.UnixMilli(at)))
	} else {
		b.WriteString("idle\n")
	}
	return b.String()
}

func clockTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return "+" + t.Sub(midnight).String()
}
