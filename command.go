package carillon

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verb is what a command does. It is part of the subject, carillon.cmd.<verb>.<job>.
type Verb string

// The verbs of commands. As requests (carillon.api.<verb>.<job>) the same commands are answered.
const (
	VerbPut    Verb = "put"
	VerbDelete Verb = "delete"
	VerbPause  Verb = "pause"
	VerbResume Verb = "resume"
	VerbFire   Verb = "fire"
	VerbDone   Verb = "done" // reserved for executions
)

// VerbImport is the request that puts many jobs.
const VerbImport Verb = "import"

// VerbSnapshot is the request that has the service save a snapshot of itself.
const VerbSnapshot Verb = "snapshot"

// VerbDrain is the request that makes one node hand over the partitions that it serves. In the subject the node's name takes the place
// of a job's id.
const VerbDrain Verb = "drain"

// The verbs of requests that change nothing.
const (
	VerbGet     Verb = "get"
	VerbList    Verb = "list"
	VerbPreview Verb = "preview"
	VerbStatus  Verb = "status"
)

// Limits of requests.
const (
	MaxListLimit     = 1000 // jobs on a page
	DefaultListLimit = 100
	MaxPreviewCount  = 1000 // fire times
	DefaultPreview   = 10
	MaxCursorLength  = 1024      // bytes
	MaxPageBytes     = 512 << 10 // of a page's JSON, unless it is of one job
	MaxImportLines   = 1024      // of an import
	MaxImportBytes   = 512 << 10 // of an import's body, unless it is of one line
)

// AppendPut appends the body of a put; ifVersion is nil if the put is unconditional.
func AppendPut(dst []byte, job *Job, ifVersion *uint64) []byte {
	from := len(dst)
	dst = job.AppendJSON(dst)
	if ifVersion == nil {
		return dst
	}
	dst = dst[:len(dst)-1]
	if len(dst) > from+1 {
		dst = append(dst, ',')
	}
	return append(appendUint(append(dst, `"if_version":`...), *ifVersion), '}')
}

// ParseCondition reads the body of a delete, pause or resume of one job: nothing, or {"if_version":N}.
// The error is an *Error of CodeInvalidJSON, CodeUnknownField or CodeInvalidField.
func ParseCondition(body []byte) (ifVersion *uint64, err error) {
	r := reader{b: body}
	if r.space(); r.i == len(body) {
		return nil, nil
	}
	e := r.document(conditionFields, func(string) *Error { return r.version(&ifVersion) })
	if e != nil {
		return nil, e
	}
	return ifVersion, nil
}

// AppendCondition appends a body that ParseCondition reads. For nil it appends nothing.
func AppendCondition(dst []byte, ifVersion *uint64) []byte {
	if ifVersion == nil {
		return dst
	}
	return append(appendUint(append(dst, `{"if_version":`...), *ifVersion), '}')
}

// DrainRequest is the body of a drain: the node is to have no partition or, with Undo, its share again.
type DrainRequest struct {
	Undo bool `json:"undo,omitempty"`
}

var drainFields = []string{"undo"}

// ParseDrain reads the body of a drain; an empty one counts as {}. The error is an *Error of CodeInvalidJSON, CodeUnknownField or
// CodeInvalidField.
func ParseDrain(body []byte) (d DrainRequest, err error) {
	r := reader{b: body}
	if r.space(); r.i == len(body) {
		return d, nil
	}
	e := r.document(drainFields, func(name string) (e *Error) {
		d.Undo, e = r.bool(name)
		return e
	})
	if e != nil {
		return DrainRequest{}, e
	}
	return d, nil
}

// ParseFire reads the body of a fire: nothing, or an object with one of payload, payload_text and
// payload_base64, to be delivered in place of the job's own payload. has tells whether there was one. The error
// is an *Error of CodeInvalidJSON, CodeUnknownField, CodeInvalidField or CodePayloadTooLarge.
func ParseFire(body []byte) (payload []byte, has bool, err error) {
	r := reader{b: body}
	if r.space(); r.i == len(body) {
		return nil, false, nil
	}
	var j Job
	e := r.document(fireFields, func(name string) *Error { return j.read(&r, name) })
	if e != nil {
		return nil, false, e
	}
	return j.Payload, j.Form != PayloadNone, nil
}

// AppendFire appends a body that ParseFire reads, with a payload in place of the job's own. With PayloadNone the form
// is chosen to suit the bytes.
func AppendFire(dst, payload []byte, form PayloadForm) []byte {
	j := Job{Payload: payload, Form: form}
	if j.form() == PayloadNone {
		j.Form = PayloadText // a payload of no bytes
	}
	return j.AppendJSON(dst)
}

// Selection says which jobs a delete, pause or resume of many jobs is for: those that match every field that is set.
type Selection struct {
	Prefix string `json:"prefix,omitempty"` // what the ids begin with
	Label  string `json:"label,omitempty"`  // "name=value", or "name" for any value
	Owner  string `json:"owner,omitempty"`
}

// ParseSelection reads the body of a delete, pause or resume without a job in its subject. At least one
// field is needed. The error is an *Error of CodeInvalidJSON, CodeUnknownField or CodeInvalidField.
func ParseSelection(body []byte) (Selection, error) {
	var s Selection
	r := reader{b: body}
	e := r.document(selectionFields, func(name string) *Error { return s.read(&r, name) })
	if e == nil {
		e = s.check()
	}
	if e == nil && s == (Selection{}) {
		e = &Error{Code: CodeInvalidField, Message: "selects every job; give at least one of prefix, label and owner"}
	}
	if e != nil {
		return Selection{}, e
	}
	return s, nil
}

func (s *Selection) read(r *reader, name string) (e *Error) {
	switch name {
	case "prefix":
		s.Prefix, e = r.given(name, CodeInvalidField)
	case "label":
		s.Label, e = r.given(name, CodeInvalidField)
	case "owner":
		s.Owner, e = r.given(name, CodeInvalidField)
	}
	return e
}

func (s *Selection) check() *Error {
	if s.Prefix != "" && CheckJobID(s.Prefix) != nil {
		return errField(CodeInvalidField, "prefix", "%s is the beginning of no job id: 1 to %d of A-Z a-z 0-9 _ - : = @ +", quote(s.Prefix), MaxJobIDLength)
	}
	if strings.HasPrefix(s.Label, "=") {
		return errField(CodeInvalidField, "label", `%s has no name; expected "name=value" or "name"`, quote(s.Label))
	}
	if e := checkText("label", s.Label, 2*MaxLabelLength+1); e != nil {
		return e
	}
	return checkText("owner", s.Owner, MaxOwnerLength)
}

// Matches tells whether the selection includes a job. An empty selection, as in a list request, includes every job.
func (s *Selection) Matches(j *Job) bool {
	if !strings.HasPrefix(j.ID, s.Prefix) || s.Owner != "" && s.Owner != j.Owner {
		return false
	}
	if s.Label == "" {
		return true
	}
	name, want, valued := strings.Cut(s.Label, "=")
	value, has := j.Labels[name]
	return has && (!valued || value == want)
}

// ListRequest asks for jobs, ordered by id, a page at a time. Its zero value asks for all jobs.
type ListRequest struct {
	Selection
	Topic  string `json:"topic,omitempty"` // may hold wildcards, as in NATS subjects
	Status Status `json:"status,omitempty"`
	Limit  int    `json:"limit,omitempty"`  // jobs on the page, 1 to MaxListLimit; 0 is DefaultListLimit
	Cursor string `json:"cursor,omitempty"` // from the previous page's reply; empty for the first page
}

// ParseList reads the body of a list; an empty one asks for all jobs. If the body has no limit, Limit is
// DefaultListLimit. The error is an *Error of CodeInvalidJSON, CodeUnknownField, CodeInvalidField or
// CodeInvalidTopic.
func ParseList(body []byte) (ListRequest, error) {
	l := ListRequest{Limit: DefaultListLimit}
	r := reader{b: body}
	if r.space(); r.i == len(body) {
		return l, nil
	}
	e := r.document(listFields, func(name string) *Error { return l.read(&r, name) })
	if e == nil {
		e = l.check()
	}
	if e != nil {
		return ListRequest{}, e
	}
	return l, nil
}

func (l *ListRequest) read(r *reader, name string) (e *Error) {
	switch name {
	case "topic":
		if l.Topic, e = r.given(name, CodeInvalidTopic); e == nil {
			e = checkTopic(name, l.Topic, true)
		}
	case "status":
		var s string
		s, e = r.given(name, CodeInvalidField)
		if l.Status = Status(s); e == nil && !slices.Contains(statuses, l.Status) {
			e = errField(CodeInvalidField, name, "is %s; expected one of scheduled, paused, completed, running, failed, cancelled", quote(s))
		}
	case "limit":
		var n uint64
		n, e = r.integer(name, 1, MaxListLimit)
		l.Limit = int(n)
	case "cursor":
		if l.Cursor, e = r.given(name, CodeInvalidField); e == nil {
			e = checkText(name, l.Cursor, MaxCursorLength)
		}
	default:
		e = l.Selection.read(r, name)
	}
	return e
}

// Matches tells whether the request asks for a job.
func (l *ListRequest) Matches(j *JobReply) bool {
	return (l.Status == "" || l.Status == j.Status) && l.Selection.Matches(&j.Spec) &&
		(l.Topic == "" || MatchTopic(l.Topic, j.Spec.Topic))
}

// MatchTopic tells whether a topic (empty for DefaultTopic) matches a filter, in which a token may be *
// and the last one >, as in NATS subjects.
func MatchTopic(filter, topic string) bool {
	if topic == "" {
		topic = DefaultTopic
	}
	for {
		f, filterRest, moreFilter := strings.Cut(filter, ".")
		t, topicRest, moreTopic := strings.Cut(topic, ".")
		switch {
		case f == ">":
			return true
		case f != "*" && f != t, moreFilter != moreTopic:
			return false
		case !moreFilter:
			return true
		}
		filter, topic = filterRest, topicRest
	}
}

// PreviewRequest asks when a schedule would fire, without a job.
type PreviewRequest struct {
	Schedule string
	Zone     string
	Gap      Gap
	Fold     Fold
	Start    time.Time
	End      time.Time
	After    time.Time // fires later than this; zero: now
	Count    int       // fire times, 1 to MaxPreviewCount; 0 is DefaultPreview
}

// ParsePreview reads the body of a preview. If it has no count, Count is DefaultPreview. The error is an
// *Error of CodeInvalidJSON, CodeUnknownField or CodeInvalidField, or of CodeInvalidSchedule or
// CodeInvalidZone: schedule and zone are checked for their shape only.
func ParsePreview(body []byte) (PreviewRequest, error) {
	p := PreviewRequest{Count: DefaultPreview}
	var j Job
	r := reader{b: body}
	e := r.document(previewFields, func(name string) (e *Error) {
		switch name {
		case "after":
			p.After, e = r.instant(name)
		case "count":
			var n uint64
			n, e = r.integer(name, 1, MaxPreviewCount)
			p.Count = int(n)
		default:
			e = j.read(&r, name)
		}
		return e
	})
	if e == nil {
		e = j.checkTimes()
	}
	if e == nil && j.Schedule == "" {
		e = errField(CodeInvalidSchedule, "schedule", "is missing; there is nothing to preview")
	}
	if e != nil {
		return PreviewRequest{}, e
	}
	p.Schedule, p.Zone, p.Gap, p.Fold, p.Start, p.End = j.Schedule, j.Zone, j.Gap, j.Fold, j.Start, j.End
	return p, nil
}

// AppendJSON appends a body that ParsePreview reads.
func (p *PreviewRequest) AppendJSON(dst []byte) []byte {
	j := Job{Schedule: p.Schedule, Zone: p.Zone, Gap: p.Gap, Fold: p.Fold, Start: p.Start, End: p.End}
	from := len(dst)
	dst = j.appendMembers(append(dst, '{'), false)
	comma := func() {
		if len(dst) > from+1 {
			dst = append(dst, ',')
		}
	}
	if !p.After.IsZero() {
		comma()
		dst = appendTime(append(dst, `"after":`...), p.After)
	}
	if p.Count != 0 {
		comma()
		dst = strconv.AppendInt(append(dst, `"count":`...), int64(p.Count), 10)
	}
	return append(dst, '}')
}

var (
	conditionFields = []string{"if_version"}
	fireFields      = []string{"payload", "payload_text", "payload_base64"}
	selectionFields = []string{"prefix", "label", "owner"}
	listFields      = []string{"prefix", "label", "owner", "topic", "status", "limit", "cursor"}
	previewFields   = []string{"schedule", "zone", "dst_gap", "dst_fold", "start", "end", "after", "count"}
)
