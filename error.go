package carillon

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Code names why a request was refused. The codes are part of the protocol and never change meaning.
type Code string

// The codes of the protocol, version 1.
const (
	CodeInvalidJobID    Code = "invalid_job_id"
	CodeInvalidJSON     Code = "invalid_json"
	CodeUnknownField    Code = "unknown_field"
	CodeInvalidSchedule Code = "invalid_schedule"
	CodeInvalidZone     Code = "invalid_zone"
	CodeInvalidTopic    Code = "invalid_topic"
	CodeInvalidField    Code = "invalid_field"
	CodePayloadTooLarge Code = "payload_too_large"
	CodeNotFound        Code = "not_found"
	CodeVersionConflict Code = "version_conflict"
	CodeLimitExceeded   Code = "limit_exceeded"
	CodeUnavailable     Code = "unavailable"
	CodeInternal        Code = "internal"
)

// Status returns the code as a number, which is the value of the Nats-Service-Error-Code header: 400, 404,
// 409, 413, 429, 500 or 503.
func (c Code) Status() int {
	switch c {
	case CodeNotFound:
		return 404
	case CodeVersionConflict:
		return 409
	case CodePayloadTooLarge:
		return 413
	case CodeLimitExceeded:
		return 429
	case CodeUnavailable:
		return 503
	case CodeInternal:
		return 500
	}
	return 400
}

// Error is a refusal, worded for the person who sent the request.
type Error struct {
	Code    Code   `json:"code"`
	Field   string `json:"field,omitempty"` // the field at fault, e.g. "schedule"; empty when the whole request is
	Message string `json:"message"`
}

func (e *Error) Error() string {
	if e.Field == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Field + ": " + e.Message
}

// Is tells whether target is an *Error of the same code and, if target names a field, of the same field. So
// errors.Is(err, &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Field == "" || t.Field == e.Field)
}

// AppendJSON appends the body of a carillon.v1.error reply.
func (e *Error) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"type":"`+TypeError+`",`...)
	dst = e.appendMembers(dst)
	return append(dst, '}')
}

func (e *Error) appendMembers(dst []byte) []byte {
	dst = appendString(append(dst, `"code":`...), string(e.Code))
	if e.Field != "" {
		dst = appendString(append(dst, `,"field":`...), e.Field)
	}
	return appendString(append(dst, `,"message":`...), e.Message)
}

// ParseError reads the body of a carillon.v1.error reply. Any other body becomes an error of CodeInternal,
// whose message quotes the body, cut short.
func ParseError(body []byte) *Error {
	var e Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code == "" {
		return &Error{Code: CodeInternal, Message: "an error reply that cannot be read: " + quote(string(body))}
	}
	return &e
}

// AsError returns err as an *Error. If it is none and wraps none, it becomes one of CodeInternal; nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// asError turns a nil *Error into a nil error: assigned directly, it would become a non-nil one.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

func errField(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// quote quotes s, cut so that an error never repeats the whole of a hostile input.
func quote(s string) string {
	const longest = 64
	if len(s) > longest {
		return strconv.QuoteToASCII(s[:longest]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
