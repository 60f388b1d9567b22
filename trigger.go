package carillon

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Headers of triggers; the last one is of commands.
const (
	HeaderJob       = "Carillon-Job"
	HeaderTrigger   = "Carillon-Trigger"
	HeaderScheduled = "Carillon-Scheduled"
	HeaderVersion   = "Carillon-Version"
	HeaderOutput    = "Carillon-Output"
	HeaderMissed    = "Carillon-Missed"
	HeaderRequest   = "Carillon-Request" // the client's own id for one command, the same on every retry
)

// Trigger is the message of one fire of a job, as a worker gets it.
type Trigger struct {
	Job       string    // id
	ID        string    // <job>@<scheduled unix ms>, or <job>!<log sequence> if forced: an idempotency key, see docs/protocol.md
	Scheduled time.Time // when the job was to fire, whole milliseconds, UTC
	Version   uint64    // of the job
	Output    uint64    // the output's number in its partition, which numbers triggers and events together, without gaps
	Missed    uint64    // how many earlier fires that were missed this one stands for
	Partition int       // -1 for a trigger from a topic queue
	Topic     string
	Headers   nats.Header // all headers of the message, with the job's own
	Payload   []byte

	Stored   time.Time // when the output stream stored it; zero in Watch
	Received time.Time // when this process received it
	Attempt  int       // deliveries to workers so far, this one included; zero in Watch
}

// Lateness is how long after its scheduled time the trigger reached this process, by this process's clock.
func (t *Trigger) Lateness() time.Duration { return t.Received.Sub(t.Scheduled) }

// Forced tells whether the trigger is of a forced fire: a command made it, not the schedule.
func (t *Trigger) Forced() bool {
	_, _, forced, _ := SplitTriggerID(t.ID)
	return forced
}

// FormatTriggerID returns the id of a scheduled trigger: <job>@<scheduled unix ms>.
func FormatTriggerID(job string, ms int64) string { return string(AppendTriggerID(nil, job, ms)) }

// AppendTriggerID appends what FormatTriggerID returns.
func AppendTriggerID(dst []byte, job string, ms int64) []byte {
	return strconv.AppendInt(append(append(dst, job...), '@'), ms, 10)
}

// FormatForcedID returns the id of a forced fire's trigger: <job>!<log sequence of the command>.
func FormatForcedID(job string, sequence uint64) string {
	return job + "!" + strconv.FormatUint(sequence, 10)
}

// SplitTriggerID splits a trigger's id; ok is false if it is not one. n is the scheduled time in unix ms or, if
// forced, the log sequence of the command.
func SplitTriggerID(id string) (job string, n int64, forced, ok bool) {
	at := strings.LastIndexAny(id, "@!") // a job's id may hold @ itself, so the last one divides
	if at < 0 {
		return "", 0, false, false
	}
	n, err := strconv.ParseInt(id[at+1:], 10, 64)
	return id[:at], n, id[at] == '!', err == nil && n >= 0 && CheckJobID(id[:at]) == nil
}

// ParseTrigger reads a message of an output stream or of a topic queue. It returns an error for an event and
// for any other message that is not a trigger. Headers and Payload are the message's own memory; Stored,
// Received and Attempt are for the caller to set.
func (n Names) ParseTrigger(subject string, headers nats.Header, payload []byte) (t Trigger, err error) {
	if err = n.parseTrigger(&t, subject, headers, payload); err != nil {
		return Trigger{}, err
	}
	return t, nil
}

// parseTrigger is ParseTrigger into an empty trigger: a worker needs it on the heap, and saves a copy.
func (n Names) parseTrigger(t *Trigger, subject string, headers nats.Header, payload []byte) (err error) {
	t.Job, t.ID, t.Headers, t.Payload = headers.Get(HeaderJob), headers.Get(HeaderTrigger), headers, payload
	var ok bool
	if t.Partition, t.Topic, ok = n.SplitTrigger(subject); !ok {
		return fmt.Errorf("%s is no trigger's subject", quote(subject))
	}
	if job, _, _, ok := SplitTriggerID(t.ID); !ok || job != t.Job {
		return badHeader(HeaderTrigger, t.ID)
	}
	scheduled := headers.Get(HeaderScheduled)
	if t.Scheduled, ok = parseTime(scheduled); !ok {
		return badHeader(HeaderScheduled, scheduled)
	}
	if t.Version, err = parseNumber(headers, HeaderVersion); err != nil {
		return err
	}
	if t.Output, err = parseNumber(headers, HeaderOutput); err != nil {
		return err
	}
	if headers.Get(HeaderMissed) != "" {
		t.Missed, err = parseNumber(headers, HeaderMissed)
	}
	return err
}

func parseNumber(headers nats.Header, name string) (uint64, error) {
	s := headers.Get(name)
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, badHeader(name, s)
	}
	return n, nil
}

// parseTime reads a time in TimeFormat, and nothing else. time.Parse accepts hours of one digit and a comma,
// too, and looking for those costs a worker more than the rest of a trigger.
func parseTime(s string) (t time.Time, ok bool) {
	const shape = "0000-00-00T00:00:00.000Z"
	if len(s) != len(shape) {
		return t, false
	}
	var parts [7]int
	at := 0
	for i := range len(shape) {
		switch c := s[i]; {
		case shape[i] != '0':
			if c != shape[i] {
				return t, false
			}
			at++
		case c < '0' || c > '9':
			return t, false
		default:
			parts[at] = 10*parts[at] + int(c-'0')
		}
	}
	month, day, hour, minute, second := parts[1], parts[2], parts[3], parts[4], parts[5]
	t = time.Date(parts[0], time.Month(month), day, hour, minute, second, parts[6]*1e6, time.UTC)
	// time.Date turns June 31 into July 1.
	return t, month >= 1 && month <= 12 && t.Day() == day && hour < 24 && minute < 60 && second < 60
}

func badHeader(name, value string) error {
	return fmt.Errorf("the header %s is %s, which no trigger has", name, quote(value))
}
