package carillon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// SnapshotRequest asks the service to save a snapshot of all its jobs while it fires, or to give up a save. Exactly one
// of Dir, Bucket and Cancel must be set.
type SnapshotRequest struct {
	Dir    string `json:"dir,omitempty"`    // the archive's directory on the machine of the node that answers; an absolute path
	Bucket string `json:"bucket,omitempty"` // the JetStream Object Store that is the archive; it is made if it does not exist
	Cancel string `json:"cancel,omitempty"` // the Carillon-Request of the save to give up

	// Recheck makes the save compare the blocks that the archive already has with what it would write, and repair those that differ.
	Recheck bool `json:"recheck,omitempty"`
}

// maxDir is how many bytes a path may have, as on Linux. Each step of a longer one would be looked up, in vain, and copied.
const maxDir = 4096

var (
	snapshotFields = []string{"dir", "bucket", "cancel", "recheck"}
	bucketName     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) // nats.go's rule
	windowsRoot    = regexp.MustCompile(`^[A-Za-z]:[\\/]`)
)

// ParseSnapshot reads the body of a snapshot request. The error is an *Error of CodeInvalidJSON, CodeUnknownField
// or CodeInvalidField.
func ParseSnapshot(body []byte) (s SnapshotRequest, err error) {
	r := reader{b: body}
	e := r.document(snapshotFields, func(name string) (e *Error) {
		switch name {
		case "dir":
			s.Dir, e = r.given(name, CodeInvalidField)
		case "bucket":
			s.Bucket, e = r.given(name, CodeInvalidField)
		case "cancel":
			s.Cancel, e = r.given(name, CodeInvalidField)
		case "recheck":
			s.Recheck, e = r.bool(name)
		}
		return e
	})
	if e == nil {
		e = s.check()
	}
	if e != nil {
		return SnapshotRequest{}, e
	}
	return s, nil
}

func (s *SnapshotRequest) check() *Error {
	given := 0
	for _, v := range []string{s.Dir, s.Bucket, s.Cancel} {
		if v != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return &Error{Code: CodeInvalidField, Message: "give exactly one of dir, bucket and cancel"}
	case len(s.Dir) > maxDir:
		return errField(CodeInvalidField, "dir", "has %d bytes; at most %d", len(s.Dir), maxDir)
	case s.Dir != "" && (strings.ContainsRune(s.Dir, 0) || !utf8.ValidString(s.Dir) || !path.IsAbs(s.Dir) && !windowsRoot.MatchString(s.Dir)):
		return errField(CodeInvalidField, "dir", "is %s; expected an absolute path on the service's machine, as UTF-8", quote(s.Dir))
	case s.Bucket != "" && !bucketName.MatchString(s.Bucket):
		return errField(CodeInvalidField, "bucket", "is %s; expected 1 to 128 of A-Z a-z 0-9 _ -", quote(s.Bucket))
	}
	return nil
}

// SnapshotPhase is how far a save is.
type SnapshotPhase string

// The phases of a save. The last two end it.
const (
	SnapshotCheckpoint SnapshotPhase = "checkpoint" // what changed is being written to the job table
	SnapshotWrite      SnapshotPhase = "write"      // the table is being written to the archive
	SnapshotDone       SnapshotPhase = "done"
	SnapshotCancelled  SnapshotPhase = "cancelled" // also the phase in the answer to a Cancel
)

// SnapshotReply is one of the several answers to a snapshot request; at least one comes each second.
type SnapshotReply struct {
	Type   string        `json:"type"` // TypeSnapshot
	Phase  SnapshotPhase `json:"phase"`
	Done   uint64        `json:"done_bytes"`            // of the table, so far
	Total  uint64        `json:"total_bytes,omitempty"` // an estimate, from the previous snapshot; 0: unknown
	Rows   uint64        `json:"rows"`                  // of the table, so far
	Blocks uint64        `json:"blocks"`

	// With SnapshotDone only.
	ID           string `json:"id,omitempty"`
	Archive      string `json:"archive,omitempty"` // directory or bucket, as the node names it
	Partitions   int    `json:"partitions,omitempty"`
	Written      int    `json:"blocks_written,omitempty"` // blocks that the archive did not have
	WrittenBytes int64  `json:"bytes_written,omitempty"`
}

// AppendJSON appends a carillon.v1.snapshot reply.
func (r *SnapshotReply) AppendJSON(dst []byte) []byte {
	r.Type = TypeSnapshot
	return appendMarshalled(dst, r)
}

// SaveSnapshot makes the service save a snapshot of all its jobs while it fires, and returns the last answer once the
// snapshot is durable. progress, which may be nil, is called with each answer before that. When the context ends,
// the save is given up; the archive stays as it was, except for blocks that the next save can use.
//
// Errors: CodeInvalidField; CodeLimitExceeded, when another save is in progress or the archive is in use; CodeUnavailable,
// when no answer came for the client's timeout or ten seconds, whichever is longer (the save may then go on), or when somebody
// else gave the save up.
func (c *Client) SaveSnapshot(ctx context.Context, s SnapshotRequest, progress func(SnapshotReply)) (r SnapshotReply, err error) {
	s.Cancel = ""
	if e := s.check(); e != nil {
		return r, e
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	body, err := json.Marshal(s)
	if err != nil {
		return r, err
	}
	msg := &nats.Msg{Subject: c.names.API(VerbSnapshot, ""), Reply: c.nc.NewRespInbox(), Data: body, Header: nats.Header{}}
	id := rand.Text()
	msg.Header.Set(HeaderRequest, id)
	if !c.connected(ctx) {
		return r, disconnected(ctx)
	}
	answers, err := c.nc.SubscribeSync(msg.Reply)
	if err != nil {
		return r, c.connectionError(err)
	}
	defer answers.Unsubscribe()
	waiting, forbidden := c.watchRights(ctx, msg.Subject) // until the first answer
	if err := c.nc.PublishMsg(msg); err != nil {
		return r, c.connectionError(forbidden(err))
	}
	for heard := false; ; heard, waiting = true, ctx {
		r, err = c.snapshotAnswer(waiting, answers)
		if !heard {
			err = forbidden(err)
		}
		if err != nil {
			if ctx.Err() != nil {
				if !heard { // the first answer comes when the save begins; before that, there is nothing to give up
					waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.timeout, snapshotCancel))
					_, _ = c.snapshotAnswer(waiting, answers)
					cancel()
				}
				return r, errors.Join(ctx.Err(), c.cancelSnapshot(id))
			}
			return r, err
		}
		switch r.Phase {
		case SnapshotDone:
			return r, nil
		case SnapshotCancelled:
			return r, &Error{Code: CodeUnavailable, Message: "the save was given up"}
		}
		if progress != nil {
			progress(r)
		}
	}
}

// snapshotSilence is the least time without an answer after which a save counts as lost, although one a second is promised.
const snapshotSilence = 10 * time.Second

// snapshotCancel is the longest that a client tries to give a save up: its user has most likely pressed Ctrl-C, and waits.
const snapshotCancel = 3 * time.Second

func (c *Client) snapshotAnswer(ctx context.Context, answers *nats.Subscription) (r SnapshotReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(c.timeout, snapshotSilence))
	defer cancel()
	m, err := answers.NextMsgWithContext(ctx)
	if err != nil {
		return r, c.connectionError(err)
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return r, c.connectionError(nats.ErrNoResponders)
	}
	if m.Header.Get(headerServiceErrorCode) != "" {
		return r, ParseError(m.Data)
	}
	return r, readReply(m.Data, &r)
}

// cancelSnapshot gives a save up. If there is no such save any more, that is no error.
func (c *Client) cancelSnapshot(id string) error {
	body, err := json.Marshal(SnapshotRequest{Cancel: id})
	if err != nil {
		return err
	}
	_, _, err = c.ask(context.Background(), request{subject: c.names.API(VerbSnapshot, ""), body: body, retry: true, within: min(c.timeout, snapshotCancel)})
	if err == nil || errors.Is(err, &Error{Code: CodeNotFound}) {
		return nil
	}
	if errors.Is(err, &Error{Code: CodeUnavailable}) {
		return errors.New("the service has not confirmed that the save is given up: it may go on for a while, or be complete")
	}
	return fmt.Errorf("give up the save: %w", err)
}
