package carillon

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Headers of triggers and, the last one, of commands.
const (
	HeaderJob       = "Carillon-Job"
	HeaderTrigger   = "Carillon-Trigger"
	HeaderScheduled = "Carillon-Scheduled"
	HeaderVersion   = "Carillon-Version"
	HeaderOutput    = "Carillon-Output"
	HeaderMissed    = "Carillon-Missed"
	HeaderRequest   = "Carillon-Request" // a client's own name for one command, the same on every retry
)

// Trigger is one fire of a job, as a worker gets it.
type Trigger struct {
	Job       string    // id
	ID        string    // <job>@<scheduled unix ms>, or <job>!<log sequence>: unique for ever, an idempotency key
	Scheduled time.Time // when it was to fire, to the millisecond, UTC
	Version   uint64    // of the job
	Output    uint64    // number in the partition, without gaps
	Missed    uint64    // how many fires before this one it stands for
	Partition int       // -1 out of a topic queue
	Topic     string
	Headers   nats.Header // all of the message's, the job's own among them
	Payload   []byte

	Stored   time.Time // when the output stream took it; zero in Watch
	Received time.Time // when this process got it
	Attempt  int       // deliveries to workers so far, this one included; zero in Watch
}

// Lateness is how long after its scheduled time the trigger reached this process, by its own clock.
func (t *Trigger) Lateness() time.Duration { return t.Received.Sub(t.Scheduled) }

// Forced tells whether a fire command made the trigger, outside the schedule.
func (t *Trigger) Forced() bool {
	_, _, forced, _ := SplitTriggerID(t.ID)
	return forced
}

// FormatTriggerID gives the id of a scheduled trigger: <job>@<scheduled unix ms>.
func FormatTriggerID(job string, ms int64) string { return string(AppendTriggerID(nil, job, ms)) }

// AppendTriggerID appends what FormatTriggerID gives.
func AppendTriggerID(dst []byte, job string, ms int64) []byte {
	return strconv.AppendInt(append(append(dst, job...), '@'), ms, 10)
}

// FormatForcedID gives the id of a trigger made by a fire command: <job>!<log sequence>.
func FormatForcedID(job string, sequence uint64) string {
	return job + "!" + strconv.FormatUint(sequence, 10)
}

// SplitTriggerID takes a trigger's id apart: n is the scheduled unix time in milliseconds, or, when
// forced, the log sequence of the command.
func SplitTriggerID(id string) (job string, n int64, forced, ok bool) {
	at := strings.LastIndexAny(id, "@!") // an id may hold @ itself, so the last one counts
	if at < 0 {
		return "", 0, false, false
	}
	n, err := strconv.ParseInt(id[at+1:], 10, 64)
	return id[:at], n, id[at] == '!', err == nil && n >= 0 && CheckJobID(id[:at]) == nil
}

// ParseTrigger reads a message of an output stream or of a topic queue. It fails on events and on
// whatever else is no trigger. Headers and Payload are the message's own memory; Stored, Received and
// Attempt are left to the caller.
func (n Names) ParseTrigger(subject string, headers nats.Header, payload []byte) (Trigger, error) {
	t := Trigger{Job: headers.Get(HeaderJob), ID: headers.Get(HeaderTrigger), Headers: headers, Payload: payload}
	var ok bool
	if t.Partition, t.Topic, ok = n.SplitTrigger(subject); !ok {
		return Trigger{}, fmt.Errorf("%s is no trigger's subject", quote(subject))
	}
	if job, _, _, ok := SplitTriggerID(t.ID); !ok || job != t.Job {
		return Trigger{}, badHeader(HeaderTrigger, t.ID)
	}
	scheduled := headers.Get(HeaderScheduled)
	var err error
	// Formatted again because Parse takes hours of one digit, and a comma.
	if t.Scheduled, err = time.Parse(TimeFormat, scheduled); err != nil || t.Scheduled.Format(TimeFormat) != scheduled {
		return Trigger{}, badHeader(HeaderScheduled, scheduled)
	}
	for _, h := range []struct {
		name     string
		value    *uint64
		optional bool
	}{{HeaderVersion, &t.Version, false}, {HeaderOutput, &t.Output, false}, {HeaderMissed, &t.Missed, true}} {
		s := headers.Get(h.name)
		if s == "" && h.optional {
			continue
		}
		if *h.value, err = strconv.ParseUint(s, 10, 64); err != nil {
			return Trigger{}, badHeader(h.name, s)
		}
	}
	return t, nil
}

func badHeader(name, value string) error {
	return fmt.Errorf("the header %s is %s, which no trigger has", name, quote(value))
}
