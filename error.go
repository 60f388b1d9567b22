package carillon

import "strconv"

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

// Status is the code as a number, as it stands in the Nats-Service-Error-Code header: 400, 404, 409,
// 413, 429, 500 or 503.
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
	Field   string `json:"field,omitempty"` // the field at fault, e.g. "schedule"; empty when it is the whole request
	Message string `json:"message"`
}

func (e *Error) Error() string {
	if e.Field == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Field + ": " + e.Message
}

// Is matches another *Error of the same code, so that errors.Is(err, &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Field == "" || t.Field == e.Field)
}

// Errorf-like helpers keep the call sites on one line.
func errField(code Code, field, message string) *Error {
	return &Error{Code: code, Field: field, Message: message}
}

// quote cuts s so that an error never repeats a whole hostile input.
func quote(s string) string {
	const longest = 64
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "…"
	}
	return strconv.Quote(s)
}
