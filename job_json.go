package carillon

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The fields of a job, in the order of the protocol, of a put, and of a line of an export.
var (
	jobFields = []string{
		"schedule", "zone", "dst_gap", "dst_fold", "start", "end", "max_fires", "spread", "misfire", "expires",
		"topic", "priority", "payload", "payload_text", "payload_base64", "headers", "owner", "labels",
	}
	putFields  = append(slices.Clone(jobFields), "if_version")
	lineFields = append([]string{"id"}, jobFields...)
)

var payloadFields = [...]string{PayloadNone: "payload", PayloadJSON: "payload", PayloadText: "payload_text", PayloadBase64: "payload_base64"}

// ParseJob reads a job: the body of a put without if_version. The job does not share body's memory. The error
// is an *Error of CodeInvalidJSON, CodeUnknownField, CodeInvalidField, CodePayloadTooLarge or CodeInvalidTopic,
// or of CodeInvalidSchedule or CodeInvalidZone: schedule and zone are checked for their shape only.
func ParseJob(body []byte) (Job, error) {
	var j Job
	if e := j.parse(&reader{b: body}, jobFields, nil); e != nil {
		return Job{}, e
	}
	return j, nil
}

// ParsePut reads the body of a put: a job and, if the put is conditional, the version that the job must be at
// (0: it must not exist); else ifVersion is nil. Errors are those of ParseJob.
func ParsePut(body []byte) (job Job, ifVersion *uint64, err error) {
	if e := job.parse(&reader{b: body}, putFields, &ifVersion); e != nil {
		return Job{}, nil, e
	}
	return job, ifVersion, nil
}

// ParseLine reads a line of an export: a job with its "id". Errors are those of ParseJob, and
// CodeInvalidJobID.
func ParseLine(line []byte) (Job, error) {
	var j Job
	if e := j.parse(&reader{b: line}, lineFields, nil); e != nil {
		return Job{}, e
	}
	if e := checkID(j.ID); e != nil {
		return Job{}, e
	}
	return j, nil
}

// checkID is CheckJobID for the field "id".
func checkID(id string) *Error {
	err := CheckJobID(id)
	if err == nil {
		return nil
	}
	e := AsError(err)
	e.Field = "id"
	return e
}

func (j *Job) parse(r *reader, fields []string, ifVersion **uint64) *Error {
	e := r.document(fields, func(name string) *Error {
		if name == "if_version" {
			return r.version(ifVersion)
		}
		return j.read(r, name)
	})
	if e != nil {
		return e
	}
	return j.check(false)
}

func (r *reader) version(v **uint64) *Error {
	n, e := r.integer("if_version", 0, maxInteger)
	*v = &n
	return e
}

// read reads the value of one of lineFields.
func (j *Job) read(r *reader, name string) (e *Error) {
	switch name {
	case "id":
		j.ID, e = r.text(name)
	case "schedule":
		j.Schedule, e = r.given(name, CodeInvalidSchedule)
	case "zone":
		j.Zone, e = r.given(name, CodeInvalidZone)
	case "dst_gap":
		e = readWord(r, name, gapWords, &j.Gap)
	case "dst_fold":
		e = readWord(r, name, foldWords, &j.Fold)
	case "start":
		j.Start, e = r.instant(name)
	case "end":
		j.End, e = r.instant(name)
	case "max_fires":
		j.MaxFires, e = r.integer(name, 1, MaxFiresBound)
	case "spread":
		j.Spread, e = r.duration(name, 0, MaxSpread)
	case "misfire":
		e = readWord(r, name, misfireWords, &j.Misfire)
	case "expires":
		j.Expires, e = r.duration(name, time.Millisecond, MaxExpires)
	case "topic":
		j.Topic, e = r.given(name, CodeInvalidTopic)
	case "priority":
		e = readWord(r, name, priorityWords, &j.Priority)
	case "payload", "payload_text", "payload_base64":
		if j.Form != PayloadNone {
			return errField(CodeInvalidField, name, "stands beside %s; a job has one payload", payloadFields[j.Form])
		}
		j.Payload, j.Form, e = r.payload(name)
	case "headers":
		j.Headers, e = r.texts(name)
	case "owner":
		j.Owner, e = r.given(name, CodeInvalidField)
	case "labels":
		j.Labels, e = r.texts(name)
	}
	return e
}

// given reads a string that must not be empty: for its default a field is left out.
func (r *reader) given(field string, code Code) (string, *Error) {
	s, e := r.text(field)
	if e == nil && s == "" {
		e = errField(code, field, "is empty; leave the field out for its default")
	}
	return s, e
}

func readWord[T ~uint8](r *reader, field string, words []string, value *T) *Error {
	expected := func() string { return "one of " + strings.Join(words, ", ") }
	if r.peek() != '"' {
		return r.wrong(field, expected())
	}
	s, e := r.string()
	if e != nil {
		return e
	}
	for i, w := range words {
		if w == string(s) {
			*value = T(i)
			return nil
		}
	}
	return errField(CodeInvalidField, field, "is %s; expected %s", quote(string(s)), expected())
}

func (r *reader) instant(field string) (t time.Time, e *Error) {
	const expected = `a time of RFC 3339, such as "2026-12-01T09:00:00.250Z"`
	if r.peek() != '"' {
		return t, r.wrong(field, expected)
	}
	s, e := r.string()
	if e != nil {
		return t, e
	}
	if !rfc3339(s) || t.UnmarshalText(s) != nil {
		return t, errField(CodeInvalidField, field, "is %s; expected %s", quote(string(s)), expected)
	}
	if t.IsZero() { // year 1, which checkInstant would take for no time at all
		return t, errField(CodeInvalidField, field, "is %s; expected 1970 to 9999 (UTC)", quote(string(s)))
	}
	return t, checkInstant(field, &t)
}

// rfc3339 refuses what the time package lets pass: hours of one digit, a comma for the point, more than nine digits in the
// fraction of a second, and offsets of a day or more.
func rfc3339(s []byte) bool {
	if len(s) < len("2006-01-02T15:04:05Z") || s[13] != ':' || bytes.IndexByte(s, ',') >= 0 {
		return false
	}
	if fraction, ok := bytes.CutPrefix(s[len("2006-01-02T15:04:05"):], []byte(".")); ok && len(fraction)-len(bytes.TrimLeft(fraction, "0123456789")) > 9 {
		return false
	}
	offset := s[len(s)-len("+00:00"):]
	return s[len(s)-1] == 'Z' || string(offset[1:3]) < "24" && offset[3] == ':' && string(offset[4:]) < "60"
}

func (r *reader) duration(field string, least, most time.Duration) (time.Duration, *Error) {
	const expected = `a duration with its unit, such as "30s", "250ms" or "1h30m"`
	if r.peek() != '"' {
		return 0, r.wrong(field, expected)
	}
	s, e := r.string()
	if e != nil {
		return 0, e
	}
	d, err := time.ParseDuration(string(s))
	if err != nil { // also for a duration beyond time.Duration's range, so the message gives the allowed one
		return 0, errField(CodeInvalidField, field, "is %s; expected %s, from %s to %s", quote(string(s)), expected, durationText(least), durationText(most))
	}
	return d, checkDuration(field, d, least, most)
}

// payload reads one of the three payload fields. The payload does not share the body's memory.
func (r *reader) payload(field string) (payload []byte, form PayloadForm, e *Error) {
	var b []byte
	switch field {
	case "payload":
		form = PayloadJSON
		b, e = r.raw()
	case "payload_text", "payload_base64":
		if form = PayloadText; field == "payload_base64" {
			form = PayloadBase64
		}
		if r.peek() != '"' {
			return nil, form, r.wrong(field, "a string")
		}
		b, e = r.string()
	}
	if e != nil {
		return nil, form, e
	}
	size := len(b)
	if form == PayloadBase64 {
		// The size by the length of the text: one that is too long is not worth decoding.
		size = base64.StdEncoding.DecodedLen(len(b)) - bytes.Count(b[max(0, len(b)-2):], []byte("="))
	}
	if size > MaxPayload {
		return nil, form, errField(CodePayloadTooLarge, field, "is %d bytes; at most %d", size, MaxPayload)
	}
	if form != PayloadBase64 {
		return bytes.Clone(b), form, nil
	}
	payload, ok := decodeBase64(b)
	if !ok {
		return nil, form, errField(CodeInvalidField, field, "is no base64 (RFC 4648 section 4, with padding)")
	}
	return payload, form, nil
}

// AppendJSON appends the job's canonical JSON: the fields in the order of the protocol, defaults left
// out, names of headers and labels sorted, the payload byte for byte. It is the body of a put, and ParseJob
// reads it back. Two valid jobs are equal exactly when their canonical JSON is. The ID is not part of it.
func (j *Job) AppendJSON(dst []byte) []byte {
	return append(j.appendMembers(append(dst, '{'), false), '}')
}

// AppendLine appends the job with its "id" on one line, without a newline at its end; ParseLine reads it
// back. A JSON payload that holds line breaks is given as payload_text. A text that would be longer, with its escapes,
// than the largest payload in base64 is given as payload_base64. The bytes delivered stay the same.
func (j *Job) AppendLine(dst []byte) []byte {
	dst = appendString(append(dst, `{"id":`...), j.ID)
	dst = append(dst, ',')
	dst = j.appendMembers(dst, true)
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, '}')
}

func (j *Job) appendMembers(dst []byte, line bool) []byte {
	from := len(dst)
	name := func(s string) {
		if len(dst) > from {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), s...), `":`...)
	}
	text := func(field, s, byDefault string) {
		if s != byDefault {
			name(field)
			dst = appendString(dst, s)
		}
	}
	text("schedule", j.Schedule, "")
	if j.Zone != defaultZone {
		text("zone", j.Zone, "")
	}
	text("dst_gap", j.Gap.String(), gapWords[0])
	text("dst_fold", j.Fold.String(), foldWords[0])
	if !j.Start.IsZero() {
		name("start")
		dst = appendTime(dst, j.Start)
	}
	if !j.End.IsZero() {
		name("end")
		dst = appendTime(dst, j.End)
	}
	if j.MaxFires != 0 {
		name("max_fires")
		dst = strconv.AppendUint(dst, j.MaxFires, 10)
	}
	if j.Spread != 0 {
		name("spread")
		dst = appendString(dst, durationText(j.Spread))
	}
	text("misfire", j.Misfire.String(), misfireWords[0])
	if j.Expires != 0 {
		name("expires")
		dst = appendString(dst, durationText(j.Expires))
	}
	if j.Topic != DefaultTopic {
		text("topic", j.Topic, "")
	}
	text("priority", j.Priority.String(), priorityWords[0])
	switch form := j.form(); {
	case form == PayloadJSON && !(line && bytes.ContainsAny(j.Payload, "\r\n")):
		name("payload")
		dst = append(dst, j.Payload...)
	case form == PayloadJSON || form == PayloadText:
		before := len(dst)
		name("payload_text")
		at := len(dst)
		if dst = appendString(dst, j.Payload); !line || len(dst)-at <= base64.StdEncoding.EncodedLen(MaxPayload)+len(`""`) {
			break
		}
		dst = dst[:before] // mostly escapes: the text may be too long for a request
		fallthrough
	case form == PayloadBase64:
		name("payload_base64")
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, j.Payload)
		dst = append(dst, '"')
	}
	if len(j.Headers) > 0 {
		name("headers")
		dst = appendTexts(dst, j.Headers)
	}
	text("owner", j.Owner, "")
	if len(j.Labels) > 0 {
		name("labels")
		dst = appendTexts(dst, j.Labels)
	}
	return dst
}

// MarshalJSON returns AppendJSON's bytes. But json.Marshal and json.Encoder compact what they get from it,
// and so remove white space from a JSON payload: use AppendJSON if the bytes matter.
func (j Job) MarshalJSON() ([]byte, error) { return j.AppendJSON(nil), nil }

// UnmarshalJSON is ParseJob. It leaves the ID as it is.
func (j *Job) UnmarshalJSON(body []byte) error {
	parsed, err := ParseJob(body)
	if err != nil {
		return err
	}
	parsed.ID = j.ID
	*j = parsed
	return nil
}

// appendTime appends an instant of a job in quotes: RFC 3339 in UTC, with milliseconds only if they are not zero.
func appendTime(dst []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(dst, `"2006-01-02T15:04:05.999Z"`)
}

// TimeFormat is the layout of times in replies, events and triggers. They are in UTC.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// AppendTime appends an instant in TimeFormat. time.Time.AppendFormat parses the layout each time, and takes
// four times as long.
func AppendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, TimeFormat)
	}
	hour, minute, second := t.Clock()
	two := func(n int, end byte) { dst = append(dst, byte('0'+n/10), byte('0'+n%10), end) }
	dst = append(dst, byte('0'+year/1000), byte('0'+year/100%10))
	two(year%100, '-')
	two(int(month), '-')
	two(day, 'T')
	two(hour, ':')
	two(minute, ':')
	two(second, '.')
	ms := t.Nanosecond() / 1e6
	return append(dst, byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}

// appendMillis appends an instant of a reply in quotes, always with milliseconds.
func appendMillis(dst []byte, t time.Time) []byte {
	return append(AppendTime(append(dst, '"'), t), '"')
}

// durationText is Duration.String without trailing units that are zero: 10m, not 10m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func plural(n int, what string) string {
	s := strconv.Itoa(n) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}
