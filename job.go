package carillon

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a job. A number, length or count beyond its limit is refused with an error that names the limit.
const (
	MaxJobIDLength  = 128       // bytes
	MaxPayload      = 512 << 10 // bytes, as delivered
	MaxHeaders      = 32        // headers
	MaxHeaderBytes  = 16 << 10  // bytes, names and values together
	MaxTopicTokens  = 8         // tokens
	MaxTopicLength  = 128       // bytes
	MaxLabels       = 32        // labels
	MaxLabelLength  = 128       // bytes, a name or a value
	MaxOwnerLength  = 128       // bytes
	MaxScheduleText = 512       // bytes
	MaxZoneLength   = 64        // bytes
	MaxFiresBound   = maxInteger
	MinInterval     = time.Millisecond
	MaxInterval     = 3652 * 24 * time.Hour // ten years
	MaxSpread       = 366 * 24 * time.Hour
	MaxExpires      = 3652 * 24 * time.Hour
)

// DefaultTopic is the topic of a job that names none.
const DefaultTopic = "default"

// defaultZone is the zone of a job that names none.
const defaultZone = "UTC"

// Misfire is a policy: what happens to fires that were missed by more than a second because no engine was ticking.
type Misfire uint8

const (
	FireOnce Misfire = iota // one trigger, for the latest missed time (the default)
	FireAll                 // a trigger for each of them, in order
	Skip                    // no trigger; each of them is counted as skipped
)

// Priority orders jobs that are due and waiting.
type Priority uint8

const (
	Normal Priority = iota // the default
	High
	Low
)

// Gap says what happens to a fire whose local time does not exist because clocks go forward.
type Gap uint8

const (
	GapShift Gap = iota // at the first valid instant after the gap (the default)
	GapSkip             // not at all
)

// Fold says which of two equal local times fires when clocks go back.
type Fold uint8

const (
	FoldFirst Fold = iota // the default
	FoldLast
	FoldBoth
)

// The enumerations' words in JSON, each in the order of its constants.
var (
	misfireWords  = []string{"fire_once", "fire_all", "skip"}
	priorityWords = []string{"normal", "high", "low"}
	gapWords      = []string{"shift", "skip"}
	foldWords     = []string{"first", "last", "both"}
)

// ParseMisfire reads a policy's name in JSON: fire_once, fire_all or skip.
func ParseMisfire(s string) (m Misfire, ok bool) {
	i := slices.Index(misfireWords, s)
	return Misfire(max(i, 0)), i >= 0
}

func (m Misfire) String() string  { return word(misfireWords, uint8(m)) }
func (p Priority) String() string { return word(priorityWords, uint8(p)) }
func (g Gap) String() string      { return word(gapWords, uint8(g)) }
func (f Fold) String() string     { return word(foldWords, uint8(f)) }

func word(words []string, n uint8) string {
	if int(n) < len(words) {
		return words[n]
	}
	return "unknown"
}

// PayloadForm is how a job's JSON gives the payload: as it was put, and as replies have it. It does not change the bytes that are
// delivered.
type PayloadForm uint8

const (
	PayloadNone   PayloadForm = iota // no payload; if there are bytes: the first of the forms below that can hold them
	PayloadJSON                      // "payload": any JSON, kept byte for byte
	PayloadText                      // "payload_text": UTF-8
	PayloadBase64                    // "payload_base64": any bytes
)

// Job is what a client asks for: when to fire, and what to deliver then. Every field's zero value is its
// default. A job's JSON is the body of a put; docs/protocol.md describes the fields.
type Job struct {
	ID string // see CheckJobID; not in the JSON of a put, because the subject has it

	// Schedule is "@every 15m", "@in 90s", "@at 2026-12-01T09:00:00Z", "@daily" and the like, or cron, such as "30 9 * * MON-FRI"; see
	// docs/protocol.md. A job without a schedule fires only by Client.Fire.
	Schedule string

	Zone     string            // IANA name, such as Europe/Paris, for cron, @daily and the like; empty is UTC
	Gap      Gap               // "dst_gap" in JSON
	Fold     Fold              // "dst_fold" in JSON
	Start    time.Time         // the schedule has no fires before it; whole milliseconds; zero: no bound
	End      time.Time         // the schedule has no fires at or after it, before Spread is added; whole milliseconds; zero: no bound
	MaxFires uint64            // after so many scheduled fires the job is completed; 0: no bound
	Spread   time.Duration     // fires are delayed by an offset below Spread, the same for all fires of the job; whole milliseconds
	Misfire  Misfire           // what becomes of fires that were missed
	Expires  time.Duration     // a fire that is later than this is skipped; whole milliseconds; 0: never
	Topic    string            // workers select triggers by it: 1 to 8 tokens; empty is DefaultTopic
	Priority Priority          // among jobs that are due
	Payload  []byte            // the bytes delivered, up to MaxPayload
	Form     PayloadForm       // how JSON gives the payload; set PayloadNone when you replace the payload of a job that was read
	Headers  map[string]string // delivered with every trigger
	Owner    string            // jobs can be selected by owner and labels; neither is delivered
	Labels   map[string]string
}

// Validate checks a job that was built in Go by the rules of ParseJob, and brings it into the form that
// ParseJob returns: times in UTC, defaults as zero values, the payload's form set. It checks the ID if there
// is one. It checks only the shape of the schedule and the zone; the engine compiles them. The error is an
// *Error.
func (j *Job) Validate() error {
	if j.ID != "" {
		if err := CheckJobID(j.ID); err != nil {
			return err
		}
	}
	return asError(j.check(true))
}

// check is Validate without the ID. syntax is whether to check the payload's syntax, which the reader has checked already.
func (j *Job) check(syntax bool) *Error {
	if j.Topic == DefaultTopic {
		j.Topic = ""
	}
	if j.Zone == defaultZone {
		j.Zone = ""
	}
	if j.Topic != "" {
		if e := checkTopic("topic", j.Topic, false); e != nil {
			return e
		}
	}
	if e := j.checkTimes(); e != nil {
		return e
	}
	switch {
	case int(j.Misfire) >= len(misfireWords):
		return errField(CodeInvalidField, "misfire", "is %d; expected FireOnce, FireAll or Skip", j.Misfire)
	case int(j.Priority) >= len(priorityWords):
		return errField(CodeInvalidField, "priority", "is %d; expected Normal, High or Low", j.Priority)
	case int(j.Gap) >= len(gapWords):
		return errField(CodeInvalidField, "dst_gap", "is %d; expected GapShift or GapSkip", j.Gap)
	case int(j.Fold) >= len(foldWords):
		return errField(CodeInvalidField, "dst_fold", "is %d; expected FoldFirst, FoldLast or FoldBoth", j.Fold)
	case j.MaxFires > MaxFiresBound:
		return errField(CodeInvalidField, "max_fires", "is %d; at most %d", j.MaxFires, uint64(MaxFiresBound))
	}
	if e := j.checkPayload(syntax); e != nil {
		return e
	}
	if e := checkHeaders(j.Headers); e != nil {
		return e
	}
	if len(j.Headers) == 0 {
		j.Headers = nil
	}
	if e := checkText("owner", j.Owner, MaxOwnerLength); e != nil {
		return e
	}
	if e := checkLabels(j.Labels); e != nil {
		return e
	}
	if len(j.Labels) == 0 {
		j.Labels = nil
	}
	return nil
}

func (j *Job) checkTimes() *Error {
	if e := checkSchedule(j.Schedule); e != nil {
		return e
	}
	if e := checkZone(j.Zone); e != nil {
		return e
	}
	if e := checkInstant("start", &j.Start); e != nil {
		return e
	}
	if e := checkInstant("end", &j.End); e != nil {
		return e
	}
	if !j.Start.IsZero() && !j.End.IsZero() && !j.End.After(j.Start) {
		return errField(CodeInvalidField, "end", "must be after start")
	}
	if e := checkDuration("spread", j.Spread, 0, MaxSpread); e != nil {
		return e
	}
	return checkDuration("expires", j.Expires, 0, MaxExpires)
}

func (j *Job) checkPayload(syntax bool) *Error {
	if len(j.Payload) == 0 {
		j.Payload = nil
	}
	j.Form = j.form()
	if int(j.Form) >= len(payloadFields) {
		return errField(CodeInvalidField, "payload", "has form %d; expected PayloadJSON, PayloadText or PayloadBase64", j.Form)
	}
	if len(j.Payload) > MaxPayload {
		return errField(CodePayloadTooLarge, payloadFields[j.Form], "is %d bytes; at most %d", len(j.Payload), MaxPayload)
	}
	if !syntax {
		return nil
	}
	switch j.Form {
	case PayloadNone, PayloadBase64:
		return nil
	case PayloadJSON:
		r := reader{b: j.Payload}
		if e := r.skip(1); e != nil {
			e.Field = "payload"
			return e
		}
		if r.i < len(r.b) {
			e := r.bad("nothing after the value, and no white space around it")
			e.Field = "payload"
			return e
		}
	case PayloadText:
		if !utf8.Valid(j.Payload) {
			return errField(CodeInvalidField, "payload_text", "is no valid UTF-8; use payload_base64 for bytes")
		}
	}
	return nil
}

// form returns the payload's form. For bytes without a form it chooses one.
func (j *Job) form() PayloadForm {
	if len(j.Payload) == 0 && j.Form == PayloadJSON {
		return PayloadNone
	}
	if len(j.Payload) == 0 || j.Form != PayloadNone {
		return j.Form
	}
	r := reader{b: j.Payload}
	switch {
	case r.skip(1) == nil && r.i == len(r.b):
		return PayloadJSON
	case utf8.Valid(j.Payload):
		return PayloadText
	}
	return PayloadBase64
}

// CheckJobID checks a job's id: 1 to 128 characters of A-Z a-z 0-9 _ - : = @ +. The error is an *Error of
// CodeInvalidJobID.
func CheckJobID(id string) error {
	if len(id) == 0 || len(id) > MaxJobIDLength {
		return &Error{Code: CodeInvalidJobID, Message: quote(id) + " has " + plural(len(id), "byte") + "; a job id has 1 to 128"}
	}
	for i := range len(id) {
		if !idByte[id[i]] {
			return &Error{Code: CodeInvalidJobID, Message: quote(id) + ` holds ` + quote(id[i:i+1]) + `; a job id is made of A-Z a-z 0-9 _ - : = @ +`}
		}
	}
	return nil
}

// CheckTopicFilter checks a topic in which a token may be * and the last one may be >, as in NATS
// subjects. The error is an *Error of CodeInvalidTopic.
func CheckTopicFilter(topic string) error { return asError(checkTopic("topic", topic, true)) }

var idByte = byteSet("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:=@+")

// tokenByte is RFC 7230's tchar: the characters of a header's name.
var tokenByte = byteSet("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")

var zoneByte = byteSet("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/")

func byteSet(members string) (set [256]bool) {
	for i := range len(members) {
		set[members[i]] = true
	}
	return set
}

func checkTopic(field, topic string, wildcards bool) *Error {
	if len(topic) == 0 || len(topic) > MaxTopicLength {
		return errField(CodeInvalidTopic, field, "%s has %s; a topic has 1 to %d", quote(topic), plural(len(topic), "byte"), MaxTopicLength)
	}
	tokens, from := 0, 0
	for i := 0; i <= len(topic); i++ {
		if i < len(topic) && topic[i] != '.' {
			if c := topic[i]; c <= ' ' || c > '~' || !wildcards && (c == '*' || c == '>') {
				return errField(CodeInvalidTopic, field, "%s holds %s; a topic is made of printable ASCII without space, '*' and '>'", quote(topic), quote(topic[i:i+1]))
			}
			continue
		}
		token := topic[from:i]
		switch {
		case token == "":
			return errField(CodeInvalidTopic, field, "%s has an empty token; tokens are joined by single dots", quote(topic))
		case len(token) > 1 && strings.ContainsAny(token, "*>"), token == ">" && i < len(topic):
			return errField(CodeInvalidTopic, field, "%s: a wildcard is a whole token, '*', or the last one, '>'", quote(topic))
		}
		tokens++
		from = i + 1
	}
	if tokens > MaxTopicTokens {
		return errField(CodeInvalidTopic, field, "%s has %d tokens; at most %d", quote(topic), tokens, MaxTopicTokens)
	}
	return nil
}

func checkSchedule(s string) *Error {
	if len(s) > MaxScheduleText {
		return errField(CodeInvalidSchedule, "schedule", "has %d bytes; at most %d", len(s), MaxScheduleText)
	}
	for i := range len(s) {
		if c := s[i]; c != '\t' && c < ' ' || c > '~' {
			return errField(CodeInvalidSchedule, "schedule", "%s holds a character that is no printable ASCII", quote(s))
		}
	}
	return nil
}

func checkZone(s string) *Error {
	if s == "" {
		return nil
	}
	if len(s) > MaxZoneLength {
		return errField(CodeInvalidZone, "zone", "has %d bytes; at most %d", len(s), MaxZoneLength)
	}
	ok := s != "Local" && s[0] != '/'
	for i := range len(s) {
		ok = ok && zoneByte[s[i]]
	}
	if !ok {
		return errField(CodeInvalidZone, "zone", `%s is no IANA zone name, such as "Europe/Paris"`, quote(s))
	}
	return nil
}

// checkInstant converts a time of the protocol to UTC and checks it: years 1970 to 9999, whole milliseconds.
func checkInstant(field string, t *time.Time) *Error {
	if t.IsZero() {
		*t = time.Time{}
		return nil
	}
	*t = time.UnixMilli(t.UnixMilli()).UTC().Add(time.Duration(t.Nanosecond() % 1e6))
	if t.UnixMilli() < 0 || t.Year() > 9999 {
		return errField(CodeInvalidField, field, "is in the year %d; expected 1970 to 9999 (UTC)", t.Year())
	}
	if t.Nanosecond()%1e6 != 0 {
		return errField(CodeInvalidField, field, "is finer than a millisecond")
	}
	return nil
}

func checkDuration(field string, d, least, most time.Duration) *Error {
	if d%time.Millisecond != 0 {
		return errField(CodeInvalidField, field, "is %s; expected whole milliseconds", d)
	}
	if d < least || d > most {
		return errField(CodeInvalidField, field, "is %s; expected %s to %s", d, durationText(least), durationText(most))
	}
	return nil
}

func checkText(field, s string, most int) *Error {
	if len(s) > most {
		return errField(CodeInvalidField, field, "has %d bytes; at most %d", len(s), most)
	}
	if !plain(s) {
		return errField(CodeInvalidField, field, "%s holds a control character or is no valid UTF-8", quote(s))
	}
	return nil
}

// plain tells whether s is UTF-8 without control characters.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

func checkHeaders(h map[string]string) *Error {
	if len(h) > MaxHeaders {
		return errField(CodeInvalidField, "headers", "has %d headers; at most %d", len(h), MaxHeaders)
	}
	if e := firstRefusal(h, checkHeader); e != nil {
		return e
	}
	total := 0
	for name, value := range h {
		total += len(name) + len(value)
	}
	if total > MaxHeaderBytes {
		return errField(CodeInvalidField, "headers", "has %d bytes of names and values; at most %d", total, MaxHeaderBytes)
	}
	return nil
}

func checkHeader(name, value string) *Error {
	if name == "" {
		return errField(CodeInvalidField, "headers", "has an empty name")
	}
	for i := range len(name) {
		if !tokenByte[name[i]] {
			return errField(CodeInvalidField, "headers", "the name %s holds %s; a name is a token of RFC 7230", quote(name), quote(name[i:i+1]))
		}
	}
	if hasPrefixFold(name, "Nats-") || hasPrefixFold(name, "Carillon-") {
		return errField(CodeInvalidField, "headers", "the name %s is reserved: none begins with Nats- or Carillon-", quote(name))
	}
	if strings.Trim(value, " \t") != value {
		// NATS trims values: the worker would see another one than was given.
		return errField(CodeInvalidField, "headers", "the value of %s begins or ends with white space, which NATS does not carry", quote(name))
	}
	if !plain(strings.ReplaceAll(value, "\t", " ")) {
		return errField(CodeInvalidField, "headers", "the value of %s holds CR, LF or another control character, or is no valid UTF-8", quote(name))
	}
	return nil
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func checkLabels(labels map[string]string) *Error {
	if len(labels) > MaxLabels {
		return errField(CodeInvalidField, "labels", "has %d labels; at most %d", len(labels), MaxLabels)
	}
	return firstRefusal(labels, checkLabel)
}

func checkLabel(name, value string) *Error {
	switch {
	case name == "":
		return errField(CodeInvalidField, "labels", "has an empty name")
	case len(name) > MaxLabelLength:
		return errField(CodeInvalidField, "labels", "the name %s has %d bytes; at most %d", quote(name), len(name), MaxLabelLength)
	case len(value) > MaxLabelLength:
		return errField(CodeInvalidField, "labels", "the value of %s has %d bytes; at most %d", quote(name), len(value), MaxLabelLength)
	case strings.Contains(name, "="):
		return errField(CodeInvalidField, "labels", "the name %s holds '=', which ends a name in a selection", quote(name))
	case !plain(name) || !plain(value):
		return errField(CodeInvalidField, "labels", "%s holds a control character or is no valid UTF-8", quote(name))
	}
	return nil
}

// firstRefusal returns check's error for the first member, by name, that it refuses: nodes that read the
// same command must answer the same, whatever the order of a map.
func firstRefusal(m map[string]string, check func(name, value string) *Error) *Error {
	var first string
	var refusal *Error
	for name, value := range m {
		if refusal != nil && name > first {
			continue
		}
		if e := check(name, value); e != nil {
			first, refusal = name, e
		}
	}
	return refusal
}

// decodeBase64 reads RFC 4648's standard alphabet with padding. It refuses line breaks, which encoding/base64 ignores.
func decodeBase64(s []byte) ([]byte, bool) {
	if bytes.ContainsAny(s, "\r\n") {
		return nil, false
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Strict().Decode(out, s)
	return out[:n], err == nil
}
