package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fields are flags that stand for members of a JSON body. All of them are text, and the protocol's own parser
// reads the body, so that a bad value gets the same error, with its code and field, as in any other request.
type fields struct {
	set    *pflag.FlagSet
	fields []field
}

type field struct {
	flag, name string
	number     bool
}

func newFields(c *cobra.Command) *fields { return &fields{set: c.Flags()} }

// text adds a flag for a member that is a string.
func (f *fields) text(flag, name, usage string) {
	f.set.String(flag, "", usage)
	f.fields = append(f.fields, field{flag, name, false})
}

// number adds a flag for a member that is a number.
func (f *fields) number(flag, name, usage string) {
	f.set.String(flag, "", usage)
	f.fields = append(f.fields, field{flag, name, true})
}

// schedule adds the flags about a schedule and when it applies, except the expression itself.
func (f *fields) schedule() {
	f.text("zone", "zone", "IANA time `zone` of a cron expression (default UTC)")
	f.text("dst-gap", "dst_gap", "`policy` where clocks go forward: shift (default), to the end of the gap, or skip")
	f.text("dst-fold", "dst_fold", "`policy` where clocks go back: the first (default) of two equal times, the last, or both")
	f.text("start", "start", "first `time` to fire at or after, RFC 3339")
	f.text("end", "end", "`time` to fire no more from, RFC 3339")
}

// body returns the JSON object of the flags that were given, with the caller's members own.
func (f *fields) body(own map[string]any) ([]byte, error) {
	members := make(map[string]any)
	for name, v := range own {
		members[name] = v
	}
	for _, d := range f.fields {
		given := f.set.Lookup(d.flag)
		if !given.Changed {
			continue
		}
		text := given.Value.String()
		if !utf8.ValidString(text) { // the encoder would replace the invalid bytes
			return nil, usagef("--%s %q is not UTF-8", d.flag, text)
		}
		members[d.name] = text
		if d.number {
			if _, err := strconv.ParseFloat(text, 64); err != nil || !json.Valid([]byte(text)) {
				return nil, usagef("--%s is %q, must be a whole number", d.flag, text)
			}
			members[d.name] = json.RawMessage(text)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(members)
	return b.Bytes(), err
}

// given returns the name of the first of these flags that was given, or "".
func (f *fields) given() string {
	for _, d := range f.fields {
		if f.set.Changed(d.flag) {
			return d.flag
		}
	}
	return ""
}
