package engine

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// A spec is what a put said of a job, as the machine keeps it: immutable bytes in one canonical encoding, so that
// equal jobs have equal specs. What a trigger needs comes first: topic, header lines, payload. The format is
// docs/formats/rows.md.
type spec string

const specVersion = 1

func encodeSpec(j *carillon.Job) []byte { return appendSpec(make([]byte, 0, 96+len(j.Payload)), j) }

func appendSpec(b []byte, j *carillon.Job) []byte {
	b = append(b, specVersion)
	b = appendString(b, j.Topic)
	b = appendString(b, headerLines(j.Headers))
	b = appendString(b, j.Payload)
	b = append(b, byte(j.Form), byte(j.Misfire), byte(j.Priority), byte(j.Gap), byte(j.Fold))
	b = binary.AppendUvarint(b, j.MaxFires)
	b = binary.AppendVarint(b, j.Spread.Milliseconds())
	b = binary.AppendVarint(b, j.Expires.Milliseconds())
	b = binary.AppendVarint(b, unixMilli(j.Start))
	b = binary.AppendVarint(b, unixMilli(j.End))
	b = appendString(b, j.Schedule)
	b = appendString(b, j.Zone)
	b = appendString(b, j.Owner)
	names := make([]string, 0, len(j.Labels))
	for name := range j.Labels {
		names = append(names, name)
	}
	sort.Strings(names)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = appendString(b, name)
		b = appendString(b, j.Labels[name])
	}
	return b
}

// headerLines renders a job's own headers as they stand in a NATS header block, sorted by name.
func headerLines(headers map[string]string) string {
	if len(headers) == 0 {
		return ""
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	sort.Strings(names)
	var s strings.Builder
	for _, name := range names {
		s.WriteString(name)
		s.WriteString(": ")
		s.WriteString(headers[name])
		s.WriteString("\r\n")
	}
	return s.String()
}

// decodeSpec is the inverse of encodeSpec. The job's payload aliases s.
func decodeSpec(s []byte) (carillon.Job, error) {
	d := decoder{b: s}
	d.version("spec", specVersion)
	var j carillon.Job
	j.Topic = d.string()
	lines := d.string()
	j.Payload = d.bytes()
	d.terms(&j)
	j.Owner = d.string()
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		if j.Labels == nil {
			j.Labels = make(map[string]string)
		}
		name := d.string()
		j.Labels[name] = d.string()
	}
	_ = d.end() // the error stays in d.err, which is checked below
	if len(j.Payload) == 0 && j.Form == carillon.PayloadNone {
		j.Payload = nil
	}
	for line := range strings.SplitSeq(lines, "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			if j.Headers == nil {
				j.Headers = make(map[string]string)
			}
			j.Headers[name] = value
		}
	}
	if d.err != nil {
		return carillon.Job{}, fmt.Errorf("engine: malformed spec: %w", d.err)
	}
	return j, nil
}

// terms reads the part of a spec that says when a job fires.
func (d *decoder) terms(j *carillon.Job) {
	j.Form = carillon.PayloadForm(d.byte())
	j.Misfire = carillon.Misfire(d.byte())
	j.Priority = carillon.Priority(d.byte())
	j.Gap = carillon.Gap(d.byte())
	j.Fold = carillon.Fold(d.byte())
	j.MaxFires = d.uvarint()
	j.Spread = time.Duration(d.varint()) * time.Millisecond
	j.Expires = time.Duration(d.varint()) * time.Millisecond
	j.Start = fromMilli(d.varint())
	j.End = fromMilli(d.varint())
	j.Schedule, j.Zone = d.string(), d.string()
}

// decodeTerms decodes only the part of a spec that says when the job fires. It fails for the same specs as decodeSpec.
func decodeTerms(s []byte) (j carillon.Job, err error) {
	d := decoder{b: s}
	d.version("spec", specVersion)
	for range 3 { // topic, header lines, payload
		d.bytes()
	}
	d.terms(&j)
	d.bytes() // owner
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		d.bytes()
		d.bytes()
	}
	if err := d.end(); err != nil {
		return carillon.Job{}, fmt.Errorf("engine: malformed spec: %w", err)
	}
	return j, nil
}

// delivery returns what a trigger carries, without decoding the rest.
func (s spec) delivery() (topic, headerLines, payload string) {
	rest := string(s[1:])
	next := func() string {
		n, size := uvarint(rest)
		v := rest[size : size+int(n)]
		rest = rest[size+int(n):]
		return v
	}
	return next(), next(), next()
}

func uvarint(s string) (v uint64, size int) {
	for shift := 0; ; shift += 7 {
		b := s[size]
		size++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, size
		}
	}
}

// unixMilli maps the zero time to 0, which stands for "no bound".
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
