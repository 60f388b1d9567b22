package carillon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a payload; encoding/json has the same bound, so that what is accepted
// here can be read there.
const maxDepth = 10000

// maxInteger is the largest whole number that every JSON reader can represent exactly: many read numbers as float64.
const maxInteger = 1<<53 - 1

// reader reads the protocol's JSON objects strictly: RFC 8259 to the letter, valid UTF-8, names that are
// case-sensitive, known and not repeated. It is written by hand because encoding/json cannot insist on all of
// this, and costs a command ten times as much.
type reader struct {
	b       []byte
	i       int
	lenient bool // skip unknown fields: replies and events may grow
}

// document reads one object of these fields, as object does, and refuses anything after it.
func (r *reader) document(fields []string, set func(name string) *Error) *Error {
	r.space()
	if r.i == len(r.b) {
		return &Error{Code: CodeInvalidJSON, Message: "the body is empty; expected a JSON object"}
	}
	if e := r.object(fields, set); e != nil {
		return e
	}
	r.space()
	if r.i < len(r.b) {
		return r.bad("nothing after the object's end")
	}
	return nil
}

// object reads an object of at most 64 known fields; for each it calls set, which must read the value.
// A null means that the field is not there, except for "payload", where it is a value.
func (r *reader) object(fields []string, set func(name string) *Error) *Error {
	var seen uint64
	return r.members(func(raw []byte, at int) *Error {
		k := -1
		for i, f := range fields {
			if f == string(raw) {
				k = i
				break
			}
		}
		if k < 0 {
			if r.lenient {
				return r.skip(1)
			}
			return errField(CodeUnknownField, cut(string(raw)), "is no field here; the fields are %s", strings.Join(fields, ", "))
		}
		if seen&(1<<k) != 0 {
			return errField(CodeInvalidJSON, fields[k], "stands twice, the second time at byte %d", at)
		}
		seen |= 1 << k
		if fields[k] != "payload" && r.null() {
			return nil
		}
		return set(fields[k])
	})
}

// members reads any object; for each name it calls member, which must read the value. at is the name's offset.
func (r *reader) members(member func(name []byte, at int) *Error) *Error {
	if !r.take('{') {
		return r.bad("an object, beginning with '{'")
	}
	r.space()
	if r.take('}') {
		return nil
	}
	for {
		r.space()
		at := r.i
		if r.peek() != '"' {
			return r.bad("a field's name in double quotes")
		}
		name, e := r.string()
		if e != nil {
			return e
		}
		r.space()
		if !r.take(':') {
			return r.bad("':' after a field's name")
		}
		r.space()
		if e := member(name, at); e != nil {
			return e
		}
		r.space()
		if r.take('}') {
			return nil
		}
		if !r.take(',') {
			return r.bad("',' or '}'")
		}
	}
}

// text reads a field that is a string.
func (r *reader) text(field string) (string, *Error) {
	if r.peek() != '"' {
		return "", r.wrong(field, "a string")
	}
	s, e := r.string()
	return string(s), e
}

// texts reads a field that is an object of strings.
func (r *reader) texts(field string) (map[string]string, *Error) {
	if r.peek() != '{' {
		return nil, r.wrong(field, "an object of strings")
	}
	var m map[string]string
	e := r.members(func(raw []byte, at int) *Error {
		if _, twice := m[string(raw)]; twice {
			return errField(CodeInvalidJSON, field, "has %s twice, the second time at byte %d", quote(string(raw)), at)
		}
		if r.peek() != '"' {
			return r.wrong(field, "a string as the value of "+quote(string(raw)))
		}
		name := string(raw)
		v, e := r.string()
		if e != nil {
			return e
		}
		if m == nil {
			m = make(map[string]string)
		}
		m[name] = string(v)
		return nil
	})
	return m, e
}

// integer reads a field that is a whole number between least and most.
func (r *reader) integer(field string, least, most uint64) (uint64, *Error) {
	expected := func() string { return fmt.Sprintf("a whole number from %d to %d", least, most) }
	if c := r.peek(); c != '-' && !digit(c) {
		return 0, r.wrong(field, expected())
	}
	from := r.i
	if e := r.number(); e != nil {
		return 0, e
	}
	// number has checked the syntax, and ParseUint refuses what is no whole number, such as 1.5 or 1e3.
	n, err := strconv.ParseUint(string(r.b[from:r.i]), 10, 64)
	if err != nil || n < least || n > most {
		return 0, errField(CodeInvalidField, field, "is %s; expected %s, written in digits only", cut(string(r.b[from:r.i])), expected())
	}
	return n, nil
}

// bool reads a field that is true or false.
func (r *reader) bool(field string) (bool, *Error) {
	raw, e := r.raw()
	if e == nil && string(raw) != "true" && string(raw) != "false" {
		e = errField(CodeInvalidField, field, "is %s; expected true or false", quote(string(raw)))
	}
	return string(raw) == "true", e
}

// raw reads any value and returns its bytes unchanged, in the body's own memory.
func (r *reader) raw() ([]byte, *Error) {
	from := r.i
	e := r.skip(1)
	return r.b[from:r.i], e
}

// skip reads past any value and checks its syntax.
func (r *reader) skip(depth int) *Error {
	if depth > maxDepth {
		return &Error{Code: CodeInvalidJSON, Message: fmt.Sprintf("at byte %d: nested deeper than %d", r.i, maxDepth)}
	}
	switch c := r.peek(); {
	case c == '{':
		return r.members(func([]byte, int) *Error { return r.skip(depth + 1) })
	case c == '[':
		return r.items(func() *Error { return r.skip(depth + 1) })
	case c == '"':
		return r.skipString()
	case c == '-' || digit(c):
		return r.number()
	case r.literal("true") || r.literal("false") || r.literal("null"):
		return nil
	}
	return r.bad("a JSON value")
}

// items reads an array; for each value it calls item, which must read it.
func (r *reader) items(item func() *Error) *Error {
	r.take('[')
	r.space()
	if r.take(']') {
		return nil
	}
	for {
		r.space()
		if e := item(); e != nil {
			return e
		}
		r.space()
		if r.take(']') {
			return nil
		}
		if !r.take(',') {
			return r.bad("',' or ']'")
		}
	}
}

func (r *reader) number() *Error {
	r.take('-')
	if !r.take('0') && !r.digits() {
		return r.bad("a digit")
	}
	if r.take('.') && !r.digits() {
		return r.bad("a digit after '.'")
	}
	if r.take('e') || r.take('E') {
		if !r.take('+') {
			r.take('-')
		}
		if !r.digits() {
			return r.bad("a digit in the exponent")
		}
	}
	return nil
}

func (r *reader) digits() bool {
	from := r.i
	for digit(r.peek()) {
		r.i++
	}
	return r.i > from
}

// string reads a string and returns its content, in the body's own memory if nothing in it is escaped.
func (r *reader) string() ([]byte, *Error) {
	from := r.i
	if e := r.skipString(); e != nil {
		return nil, e
	}
	content := r.b[from+1 : r.i-1]
	if bytes.IndexByte(content, '\\') < 0 {
		return content, nil
	}
	return unescape(content, from+1)
}

// skipString reads past a string and checks everything but the pairing of surrogates.
func (r *reader) skipString() *Error {
	from := r.i
	var high byte
	for i := r.i + 1; i < len(r.b); i++ {
		switch c := r.b[i]; {
		case c == '"':
			r.i = i + 1
			if high >= utf8.RuneSelf && !utf8.Valid(r.b[from:r.i]) {
				return &Error{Code: CodeInvalidJSON, Message: fmt.Sprintf("the string at byte %d is no valid UTF-8", from)}
			}
			return nil
		case c == '\\':
			i++
			if i == len(r.b) {
				break
			}
			if r.b[i] == 'u' {
				if _, ok := hex4(r.b[i+1:]); !ok {
					r.i = i + 1
					return r.bad(`four hexadecimal digits after \u`)
				}
				i += 4
			} else if unescaped[r.b[i]] == 0 {
				r.i = i
				return r.bad(`one of "\/bfnrtu after a backslash`)
			}
		case c < ' ':
			r.i = i
			return r.bad("no control character inside a string; write it as an escape")
		default:
			high |= c
		}
	}
	r.i = len(r.b)
	return r.bad("the end of the string that begins at byte " + strconv.Itoa(from))
}

var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'u': 'u'}

// unescape returns the content of a string that skipString has accepted; at is the content's offset in the body.
func unescape(s []byte, at int) ([]byte, *Error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		from := i
		i++
		if s[i] != 'u' {
			out = append(out, unescaped[s[i]])
			continue
		}
		c, _ := hex4(s[i+1:])
		i += 4
		if utf16.IsSurrogate(c) {
			low, ok := rune(0), false
			if i+2 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				low, ok = hex4(s[i+3:])
			}
			if c = utf16.DecodeRune(c, low); !ok || c == utf8.RuneError {
				return nil, &Error{Code: CodeInvalidJSON, Message: fmt.Sprintf(`at byte %d: half of a surrogate pair, which is no character`, at+from)}
			}
			i += 6
		}
		out = utf8.AppendRune(out, c)
	}
	return out, nil
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var n rune
	for _, c := range b[:4] {
		switch {
		case digit(c):
			c -= '0'
		case c|' ' >= 'a' && c|' ' <= 'f':
			c = c | ' ' - 'a' + 10
		default:
			return 0, false
		}
		n = n<<4 | rune(c)
	}
	return n, true
}

func (r *reader) space() {
	for r.i < len(r.b) && (r.b[r.i] == ' ' || r.b[r.i] == '\n' || r.b[r.i] == '\r' || r.b[r.i] == '\t') {
		r.i++
	}
}

// peek returns the next byte, or 0 at the end; no JSON token begins with a zero byte.
func (r *reader) peek() byte {
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return 0
}

func (r *reader) take(c byte) bool {
	if r.i < len(r.b) && r.b[r.i] == c {
		r.i++
		return true
	}
	return false
}

func (r *reader) literal(s string) bool {
	if len(r.b)-r.i < len(s) || string(r.b[r.i:r.i+len(s)]) != s {
		return false
	}
	r.i += len(s)
	return true
}

func (r *reader) null() bool { return r.peek() == 'n' && r.literal("null") }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// bad returns a syntax error that says what was expected at this place.
func (r *reader) bad(expected string) *Error {
	if r.i >= len(r.b) {
		return &Error{Code: CodeInvalidJSON, Message: fmt.Sprintf("ends at byte %d; expected %s", len(r.b), expected)}
	}
	return &Error{Code: CodeInvalidJSON, Message: fmt.Sprintf("at byte %d: found %q; expected %s", r.i, r.b[r.i], expected)}
}

// wrong returns the error that a field's value is of another type or, if there is no value at all, a syntax error.
func (r *reader) wrong(field, expected string) *Error {
	var got string
	switch c := r.peek(); {
	case c == '"':
		got = "a string"
	case c == '{':
		got = "an object"
	case c == '[':
		got = "an array"
	case c == '-' || digit(c):
		got = "a number"
	case c == 't' || c == 'f':
		got = "a boolean"
	case c == 'n':
		got = "null"
	default:
		return r.bad("a JSON value")
	}
	return errField(CodeInvalidField, field, "is %s; expected %s", got, expected)
}

// cut shortens a name that is repeated in an error, without splitting a character.
func cut(s string) string {
	const longest = 128
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "")
	}
	return s
}

// appendString appends s as a JSON string with the fewest escapes, so that the string is never longer than the
// one it was read from. Bytes that are not UTF-8 become U+FFFD.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			end := min(i+utf8.UTFMax, len(s))
			if ch, size := utf8.DecodeRuneInString(string(s[i:end])); ch != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			if c < ' ' {
				const hex = "0123456789abcdef"
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				dst = append(dst, "\ufffd"...)
			}
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// appendMarshalled appends a reply that is too rare to need a writer by hand. It panics if encoding/json refuses the reply: only for a
// time outside the years 0 to 9999 or a float that is infinite or not a number, and those would be our own mistake.
func appendMarshalled(dst []byte, reply any) []byte {
	b, err := json.Marshal(reply)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}

// appendTexts appends an object of strings, with its names sorted.
func appendTexts(dst []byte, m map[string]string) []byte {
	var few [8]string
	names := few[:0]
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		dst = appendString(dst, m[name])
	}
	return append(dst, '}')
}
