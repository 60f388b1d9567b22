package carillon

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"time"
)

// The "type" of each reply and event.
const (
	TypeJob       = "carillon.v1.job"
	TypeJobs      = "carillon.v1.jobs"
	TypePreview   = "carillon.v1.preview"
	TypeStatus    = "carillon.v1.status"
	TypeDrain     = "carillon.v1.drain"
	TypeSelection = "carillon.v1.selection"
	TypeImport    = "carillon.v1.import"
	TypeSnapshot  = "carillon.v1.snapshot"
	TypeError     = "carillon.v1.error"
	TypeEvent     = "carillon.v1.event"
)

// Status is the status of a job.
type Status string

// The statuses of a job. Running, failed and cancelled are reserved for executions; deleted occurs only in
// the answer to a delete.
const (
	StatusScheduled Status = "scheduled"
	StatusPaused    Status = "paused"
	StatusCompleted Status = "completed"
	StatusRunning   Status = "running"
	StatusFailed    Status = "failed"
	StatusCancelled Status = "cancelled"
	StatusDeleted   Status = "deleted"
)

var statuses = []Status{StatusScheduled, StatusPaused, StatusCompleted, StatusRunning, StatusFailed, StatusCancelled}

// JobReply answers get, put, delete, pause, resume and fire: the job as it is now, or, for a delete, as it was.
type JobReply struct {
	ID            string
	Version       uint64
	Status        Status
	Next          time.Time // the next fire, UTC; zero: none, or the job is paused
	LastScheduled time.Time // scheduled time of the latest fire that became a trigger, UTC; zero: none
	Fires         uint64    // scheduled fires of this version, without skipped and forced ones
	Skipped       uint64    // fires of this version that were skipped, for any reason
	Partition     int
	Trigger       string // in the answer to a fire: the trigger's id; empty if the fire repeated an earlier one
	Spec          Job    // its ID is the reply's
}

// AppendJSON appends a carillon.v1.job reply, the spec's payload byte for byte.
func (r *JobReply) AppendJSON(dst []byte) []byte {
	dst = appendString(append(dst, `{"type":"`+TypeJob+`","id":`...), r.ID)
	dst = appendUint(append(dst, `,"version":`...), r.Version)
	dst = appendString(append(dst, `,"status":`...), string(r.Status))
	if !r.Next.IsZero() {
		dst = appendMillis(append(dst, `,"next":`...), r.Next)
	}
	if !r.LastScheduled.IsZero() {
		dst = appendMillis(append(dst, `,"last_scheduled":`...), r.LastScheduled)
	}
	dst = appendUint(append(dst, `,"fires":`...), r.Fires)
	dst = appendUint(append(dst, `,"skipped":`...), r.Skipped)
	dst = appendUint(append(dst, `,"partition":`...), uint64(r.Partition))
	if r.Trigger != "" {
		dst = appendString(append(dst, `,"trigger":`...), r.Trigger)
	}
	dst = append(dst, `,"spec":`...)
	from := len(dst)
	dst = r.Spec.AppendJSON(dst)
	if len(dst)-from > base64.StdEncoding.EncodedLen(MaxPayload) && r.Spec.form() == PayloadText {
		// Mostly escapes. A command may be as long as a message can be; a reply with the same text would be longer.
		spec := r.Spec
		spec.Form = PayloadBase64
		dst = spec.AppendJSON(dst[:from])
	}
	return append(dst, '}')
}

// MarshalJSON returns AppendJSON's bytes, with the same warning as Job.MarshalJSON.
func (r JobReply) MarshalJSON() ([]byte, error) { return r.AppendJSON(nil), nil }

// UnmarshalJSON is ParseJobReply.
func (r *JobReply) UnmarshalJSON(body []byte) (err error) {
	*r, err = ParseJobReply(body)
	return err
}

// ParseJobReply reads a carillon.v1.job reply. Unknown fields are ignored. The error is an *Error of CodeInternal.
func ParseJobReply(body []byte) (JobReply, error) {
	r := reader{b: body, lenient: true}
	var j JobReply
	e := r.document(jobReplyFields, func(name string) *Error { return j.read(&r, name) })
	return j, replyError(e)
}

func (j *JobReply) read(r *reader, name string) (e *Error) {
	switch name {
	case "type":
		e = r.expect(TypeJob)
	case "id":
		j.ID, e = r.text(name)
		j.Spec.ID = j.ID
	case "version":
		j.Version, e = r.integer(name, 0, maxInteger)
	case "status":
		var s string
		s, e = r.text(name)
		j.Status = Status(s)
	case "next":
		j.Next, e = r.instant(name)
	case "last_scheduled":
		j.LastScheduled, e = r.instant(name)
	case "fires":
		j.Fires, e = r.integer(name, 0, maxInteger)
	case "skipped":
		j.Skipped, e = r.integer(name, 0, maxInteger)
	case "partition":
		var n uint64
		n, e = r.integer(name, 0, 1<<31)
		j.Partition = int(n)
	case "trigger":
		j.Trigger, e = r.text(name)
	case "spec":
		e = r.object(jobFields, func(name string) *Error { return j.Spec.read(r, name) })
		if len(j.Spec.Payload) == 0 {
			j.Spec.Payload = nil
		}
	}
	return e
}

// JobsReply answers a list: a page of jobs ordered by id.
type JobsReply struct {
	Jobs   []JobReply
	Cursor string // asks for the next page; empty on the last one
}

// AppendJSON appends a carillon.v1.jobs reply.
func (r *JobsReply) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"type":"`+TypeJobs+`","jobs":[`...)
	for i := range r.Jobs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = r.Jobs[i].AppendJSON(dst)
	}
	dst = append(dst, ']')
	if r.Cursor != "" {
		dst = appendString(append(dst, `,"cursor":`...), r.Cursor)
	}
	return append(dst, '}')
}

// MarshalJSON returns AppendJSON's bytes, with the same warning as Job.MarshalJSON.
func (r JobsReply) MarshalJSON() ([]byte, error) { return r.AppendJSON(nil), nil }

// ParseJobsReply reads a carillon.v1.jobs reply. Unknown fields are ignored. The error is an *Error of CodeInternal.
func ParseJobsReply(body []byte) (JobsReply, error) {
	r := reader{b: body, lenient: true}
	var jobs JobsReply
	e := r.document(jobsReplyFields, func(name string) (e *Error) {
		switch name {
		case "type":
			e = r.expect(TypeJobs)
		case "cursor":
			jobs.Cursor, e = r.text(name)
		case "jobs":
			e = r.list(name, func() *Error {
				var j JobReply
				e := r.object(jobReplyFields, func(name string) *Error { return j.read(&r, name) })
				jobs.Jobs = append(jobs.Jobs, j)
				return e
			})
		}
		return e
	})
	return jobs, replyError(e)
}

// PreviewReply answers a preview.
type PreviewReply struct {
	Next []time.Time // the fire times, in order; fewer than asked for when the schedule ends
}

// AppendJSON appends a carillon.v1.preview reply.
func (r *PreviewReply) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"type":"`+TypePreview+`","next":[`...)
	for i, t := range r.Next {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendMillis(dst, t)
	}
	return append(dst, `]}`...)
}

// ParsePreviewReply reads a carillon.v1.preview reply. Unknown fields are ignored. The error is an *Error of CodeInternal.
func ParsePreviewReply(body []byte) (PreviewReply, error) {
	r := reader{b: body, lenient: true}
	var p PreviewReply
	e := r.document([]string{"type", "next"}, func(name string) *Error {
		if name == "type" {
			return r.expect(TypePreview)
		}
		return r.list(name, func() *Error {
			t, e := r.instant(name)
			p.Next = append(p.Next, t)
			return e
		})
	})
	return p, replyError(e)
}

// SelectionReply answers a delete, pause or resume of many jobs. The changes that it counts were applied
// before the answer, each job on its own: this is not a transaction.
type SelectionReply struct {
	Type      string `json:"type"` // TypeSelection
	Matched   uint64 `json:"matched"`
	Changed   uint64 `json:"changed"`
	Unchanged uint64 `json:"unchanged"` // already as asked, or gone before their turn
	Failed    uint64 `json:"failed"`    // refused for lack of room, or the outcome is unknown
}

// AppendJSON appends a carillon.v1.selection reply.
func (r *SelectionReply) AppendJSON(dst []byte) []byte {
	dst = appendUint(append(dst, `{"type":"`+TypeSelection+`","matched":`...), r.Matched)
	dst = appendUint(append(dst, `,"changed":`...), r.Changed)
	dst = appendUint(append(dst, `,"unchanged":`...), r.Unchanged)
	dst = appendUint(append(dst, `,"failed":`...), r.Failed)
	return append(dst, '}')
}

// StatusReply answers a status request: the state of the node that answers, and of every partition as that
// node knows it.
type StatusReply struct {
	Type       string            `json:"type"` // TypeStatus
	Node       string            `json:"node"` // the name of the one that answers
	Time       time.Time         `json:"time"`
	Versions   Versions          `json:"versions"`
	Ready      bool              `json:"ready"`
	Problems   []string          `json:"problems,omitempty"` // why it is not ready
	Nodes      []NodeStatus      `json:"nodes,omitempty"`    // by name, where engines share a NATS
	Lateness   *Lateness         `json:"lateness,omitempty"` // of this node's triggers of the last one to two minutes
	Partitions []PartitionStatus `json:"partitions"`         // by number
}

// NodeState is the state of a node among those that share the partitions.
type NodeState string

// The states of a node.
const (
	NodeLive     NodeState = "live"
	NodeDraining NodeState = "draining" // it gets no partitions, and hands over those that it has
	NodeSilent   NodeState = "silent"   // not heard for so long that others take over; listed for ten minutes
)

// NodeStatus is one of the engines that share a NATS, as its latest beat described it.
type NodeStatus struct {
	Node        string    `json:"node"`
	State       NodeState `json:"state"`
	Zone        string    `json:"zone,omitempty"`
	Weight      int       `json:"weight"`
	Version     string    `json:"version"`
	Serves      int       `json:"serves"`          // how many partitions, by its own account
	Standby     int       `json:"standby"`         // how many partitions it would take over
	Position    uint64    `json:"position"`        // the last record of the log that it has applied
	Lag         uint64    `json:"lag"`             // records behind the node that answers; up to a beat old, a fifth of a second
	ClockOffset int64     `json:"clock_offset_ms"` // the stream's clock minus the node's own
}

// DrainReply answers a drain, at once. A StatusReply shows when the partitions have been handed over.
type DrainReply struct {
	Type     string `json:"type"` // TypeDrain
	Node     string `json:"node"`
	Draining bool   `json:"draining"` // also after an undo, while the node stops or is not allowed to publish triggers
	Serves   int    `json:"serves"`   // how many partitions, at this moment
}

// AppendJSON appends a carillon.v1.drain reply.
func (r *DrainReply) AppendJSON(dst []byte) []byte {
	r.Type = TypeDrain
	return appendMarshalled(dst, r)
}

// Versions are the versions of a node and of what it is built from.
type Versions struct {
	Carillon string `json:"carillon"`
	Logic    int    `json:"logic"`  // the state machine's rules: the same on all nodes of a service
	Tzdata   string `json:"tzdata"` // time zone rules, e.g. "2026a": the same on all nodes of a service
	NATS     string `json:"nats"`   // the server
	Go       string `json:"go"`
}

// Lateness tells how long after their due times triggers were stored, in milliseconds.
type Lateness struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

// PartitionStatus is the state of one partition.
type PartitionStatus struct {
	Partition    int               `json:"partition"`
	Owner        string            `json:"owner,omitempty"`    // the node of the latest claim; empty: none yet
	Standbys     []string          `json:"standbys,omitempty"` // the nodes that would take it over, in this order
	Epoch        uint64            `json:"epoch"`              // sequence of that claim
	Position     uint64            `json:"position"`           // sequence of the last log record applied
	Lag          uint64            `json:"lag"`                // log records not yet applied
	Now          time.Time         `json:"now,omitzero"`       // the partition's time; zero before its first tick
	TickLag      float64           `json:"tick_lag_ms"`        // how long the earliest thing that is due has waited
	Jobs         map[Status]uint64 `json:"jobs"`               // by status
	Timers       uint64            `json:"timers"`             // in the wheel
	Ready        uint64            `json:"ready"`              // due and waiting
	Outbox       uint64            `json:"outbox"`             // outputs not yet known to be stored for good
	Outputs      uint64            `json:"outputs"`            // number of the last output made
	Published    uint64            `json:"published"`          // number of the last output stored
	Foreign      uint64            `json:"foreign"`            // messages in the output stream that the engine did not publish
	Rejected     uint64            `json:"rejected"`           // commands that were refused
	Skipped      map[string]uint64 `json:"skipped"`            // skipped fires, by reason
	Checkpoint   uint64            `json:"checkpoint"`         // sequence of the last log record in the newest checkpoint
	CheckpointAt time.Time         `json:"checkpoint_at,omitzero"`
	Stopped      string            `json:"stopped,omitempty"` // why it stopped, and the remedy
}

// AppendJSON appends a carillon.v1.status reply.
func (r *StatusReply) AppendJSON(dst []byte) []byte {
	type plain StatusReply
	p := plain(*r)
	p.Type = TypeStatus
	return appendMarshalled(dst, &p)
}

var (
	jobReplyFields  = []string{"type", "id", "version", "status", "next", "last_scheduled", "fires", "skipped", "partition", "trigger", "spec"}
	jobsReplyFields = []string{"type", "jobs", "cursor"}
)

// expect reads the "type" of a reply.
func (r *reader) expect(want string) *Error {
	got, e := r.text("type")
	if e == nil && got != want {
		e = errField(CodeInvalidField, "type", "is %s; expected %s", quote(got), want)
	}
	return e
}

// list reads a field that is an array.
func (r *reader) list(field string, item func() *Error) *Error {
	if r.peek() != '[' {
		return r.wrong(field, "an array")
	}
	return r.items(item)
}

// replyError turns an error in reading a reply into one of CodeInternal: the service is at fault, not the caller.
func replyError(e *Error) error {
	if e == nil {
		return nil
	}
	return &Error{Code: CodeInternal, Field: e.Field, Message: fmt.Sprintf("a reply that cannot be read: %s", e.Message)}
}

func appendUint(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }
