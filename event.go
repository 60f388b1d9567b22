package carillon

import (
	"encoding/json"
	"time"
)

// The kinds of events. The kind is part of the subject, carillon.event.<p>.<kind>.<job>.
const (
	EventRejected  = "rejected"  // a command was refused
	EventSkipped   = "skipped"   // fires of a job will not happen
	EventCompleted = "completed" // a recurring job has no fire left
)

// Why fires were skipped.
const (
	ReasonMisfire = "misfire" // missed while no engine was ticking, under misfire "skip"
	ReasonExpired = "expired" // later than the job's "expires"
	ReasonPaused  = "paused"  // came due while the job was paused
)

// Event is what a partition publishes besides its triggers. docs/protocol.md has its JSON.
type Event struct {
	Kind    string    `json:"kind"`
	Job     string    `json:"job"`               // id; of a rejected command as it was given, cut to 128 bytes; empty: of several jobs
	Verb    string    `json:"verb,omitempty"`    // rejected: the command's, cut likewise; empty: several
	Version uint64    `json:"version,omitempty"` // skipped, completed: the job's
	Error   *Error    `json:"error,omitempty"`   // rejected: why
	Reason  string    `json:"reason,omitempty"`  // skipped: why, one of the constants above
	Count   uint64    `json:"count,omitempty"`   // of skipped fires, or of equal rejections that waited together
	First   time.Time `json:"first,omitzero"`    // skipped: the first scheduled time
	Last    time.Time `json:"last,omitzero"`     // skipped: the last one; completed: that of the id's last trigger
	Time    time.Time `json:"time,omitzero"`     // when it was decided, by the partition's time
}

// AppendJSON appends the event's body.
func (e *Event) AppendJSON(dst []byte) []byte {
	dst = appendString(append(dst, `{"type":"`+TypeEvent+`","kind":`...), e.Kind)
	dst = appendString(append(dst, `,"job":`...), cut(e.Job))
	if e.Verb != "" {
		dst = appendString(append(dst, `,"verb":`...), cut(e.Verb))
	}
	if e.Version != 0 {
		dst = appendUint(append(dst, `,"version":`...), e.Version)
	}
	if e.Error != nil {
		dst = e.Error.appendMembers(append(dst, `,"error":{`...))
		dst = append(dst, '}')
	}
	if e.Reason != "" {
		dst = appendString(append(dst, `,"reason":`...), e.Reason)
	}
	if e.Count != 0 {
		dst = appendUint(append(dst, `,"count":`...), e.Count)
	}
	for _, t := range []struct {
		name string
		time time.Time
	}{{`,"first":`, e.First}, {`,"last":`, e.Last}, {`,"time":`, e.Time}} {
		if !t.time.IsZero() {
			dst = appendMillis(append(dst, t.name...), t.time)
		}
	}
	return append(dst, '}')
}

// ParseEvent reads an event's body. Unknown fields are ignored. The error is an *Error of CodeInvalidJSON.
func ParseEvent(body []byte) (Event, error) {
	var e struct {
		Type string `json:"type"`
		Event
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Type != TypeEvent {
		return Event{}, &Error{Code: CodeInvalidJSON, Message: "no event: " + quote(string(body))}
	}
	return e.Event, nil
}
