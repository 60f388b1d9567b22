package streams

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var (
	// ErrWrongSequence: the stream's last sequence is another than expected. See WrongSequenceError.
	ErrWrongSequence = errors.New("streams: wrong last sequence")
	// ErrTimeout: no answer came; the message may be stored or not. nats-server does not answer at all
	// when a file stream cannot be written, so a full disk looks like this.
	ErrTimeout = errors.New("streams: no publish ack")
	// ErrLate: the answer has not come for a quarter of a second, and is still awaited.
	ErrLate = errors.New("streams: the publish ack is late")
	// ErrDisconnected: the connection broke, or there is no leader; a message that was sent may be stored or not.
	ErrDisconnected = errors.New("streams: disconnected")
	// ErrNoSpace: a limit of the stream, the account or the server refused the message.
	ErrNoSpace = errors.New("streams: no space")
	// ErrNoStream: the stream is not there, or no server that has it can be reached.
	ErrNoStream = errors.New("streams: no such stream")
	// ErrNotFound: the stream has no message at this sequence.
	ErrNotFound = errors.New("streams: no message at this sequence")
	// ErrNotSynced: what a stream's files hold could not be made durable.
	ErrNotSynced = errors.New("streams: not synced")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("streams: closed")
)

// WrongSequenceError is a refused publish of a chain. It matches ErrWrongSequence.
type WrongSequenceError struct {
	Last uint64 // the stream's last sequence at that moment, when Known
	// Known is false when the server did not say: a replicated stream that has others in flight.
	Known bool
}

func (e *WrongSequenceError) Error() string {
	if !e.Known {
		return ErrWrongSequence.Error()
	}
	return fmt.Sprintf("%v: it is %d", ErrWrongSequence, e.Last)
}

// Is makes errors.Is(err, ErrWrongSequence) true.
func (e *WrongSequenceError) Is(target error) bool { return target == ErrWrongSequence }

// A Position names a record of the log that was read: its sequence and the time that the stream gave it. The
// zero Position is before the first record. Without a time only the sequence is compared.
type Position struct {
	Seq  uint64
	Time time.Time
}

func (p Position) String() string {
	if p.Time.IsZero() {
		return fmt.Sprintf("sequence %d", p.Seq)
	}
	return fmt.Sprintf("sequence %d of %s", p.Seq, p.Time.UTC().Format(time.RFC3339Nano))
}

// RewoundError: the stream ends before the position, so it lost acknowledged records.
type RewoundError struct {
	At   Position
	Last uint64 // the stream's last sequence
}

func (e *RewoundError) Error() string {
	return fmt.Sprintf("streams: the log ends at %d, but %v was read from it", e.Last, e.At)
}

// CutError: the records that follow the position were removed from the stream.
type CutError struct {
	At    Position
	First uint64 // the stream's first sequence
}

func (e *CutError) Error() string {
	return fmt.Sprintf("streams: the log begins at %d, but it was read only to %v", e.First, e.At)
}

// DiffersError: the message that the stream has at the position is not the one that was read there.
type DiffersError struct {
	At    Position
	Found time.Time // the time of the message now at that sequence; zero if there is none
}

func (e *DiffersError) Error() string {
	if e.Found.IsZero() {
		return fmt.Sprintf("streams: the log no longer holds %v", e.At)
	}
	return fmt.Sprintf("streams: the log has another record, of %s, at %v", e.Found.UTC().Format(time.RFC3339Nano), e.At)
}

// APIError is an error of the JetStream API as the server sends it (server/errors.json).
type APIError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *APIError) Error() string {
	return fmt.Sprintf("streams: %s (%d)", e.Description, e.ErrCode)
}

// The error codes that are told apart here, from the server's list.
const (
	codeAccountResources     = 10002
	codeNoPeers              = 10005 // in a cluster: too few servers, or too little room on them
	codeNotAvailable         = 10008 // JetStream, or the stream, has no leader
	codeConsumerNotFound     = 10014
	codeInsufficient         = 10023
	codeMaxStreams           = 10027
	codeMemoryResources      = 10028
	codeNoMessage            = 10037
	codeNotEnabledForAccount = 10039
	codeStorageResources     = 10047
	codeStreamNotFound       = 10059
	codeSubjectsOverlap      = 10065
	codeWrongLastSequence    = 10071
	codeReplicasAlone        = 10074
	codeNotEnabled           = 10076
	codeStoreFailed          = 10077 // with "maximum bytes exceeded" and its like when discard is new
	codeStreamOffline        = 10118 // all servers that have the stream are away
	codeConsumerOffline      = 10119 // the consumer was assigned to a server that is away
	codeMaxStreamBytes       = 10122
	codeConsumerExists       = 10148
	codeWrongLastSequenceX   = 10164 // 10071 without the number
)

// class turns an error of the API into one of this package's.
func (e *APIError) class() error {
	switch e.ErrCode {
	case codeWrongLastSequence:
		_, number, _ := strings.Cut(e.Description, ": ")
		last, err := strconv.ParseUint(number, 10, 64)
		return &WrongSequenceError{Last: last, Known: err == nil}
	case codeWrongLastSequenceX:
		return &WrongSequenceError{}
	case codeAccountResources, codeInsufficient, codeMemoryResources, codeStorageResources, codeStoreFailed:
		return fmt.Errorf("%w: %s (%d)", ErrNoSpace, e.Description, e.ErrCode)
	case codeNotAvailable, codeStreamOffline, codeConsumerOffline:
		return fmt.Errorf("%w: %s (%d)", ErrDisconnected, e.Description, e.ErrCode)
	case codeStreamNotFound:
		return ErrNoStream
	case codeNoMessage:
		return ErrNotFound
	}
	return e
}

// pubAck is the server's answer to a publish.
type pubAck struct {
	Seq   uint64    `json:"seq"`
	Error *APIError `json:"error"`
}

func parseAck(data []byte) (uint64, error) {
	// Nearly all are of the form {"stream":"NAME","seq":N}, which needs no JSON parser.
	if rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`)); ok {
		if _, rest, ok = bytes.Cut(rest, []byte(`","seq":`)); ok {
			if digits, ok := bytes.CutSuffix(rest, []byte("}")); ok {
				if seq, err := strconv.ParseUint(string(digits), 10, 64); err == nil {
					return seq, nil
				}
			}
		}
	}
	var a pubAck
	if err := json.Unmarshal(data, &a); err != nil {
		return 0, fmt.Errorf("streams: publish ack: %w", err)
	}
	if a.Error != nil {
		return 0, a.Error.class()
	}
	return a.Seq, nil
}
