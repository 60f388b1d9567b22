package carillon

import (
	"context"
	"iter"
	"time"
)

// JobState is the life that a job had, in this service or another: with it an import puts the job back as it was, so
// that its later fires are those it would have had, at the same times and with the same trigger ids. Accepted and From are needed,
// except by a job without a schedule; Version, Fires and Skipped are at most 1<<52.
type JobState struct {
	Version  uint64    // at least; a job that is there does not go back
	Accepted time.Time // what its schedule counts from
	From     time.Time // the earliest fire not yet decided: those before are settled. Of a completed job: a time after all
	Last     time.Time // the latest fire decided; zero: none
	Fires    uint64    // scheduled ones so far
	Skipped  uint64

	// Missed says what becomes of the fires that are over by more than a second when the job is put back; nil: what
	// the job says.
	Missed *Misfire
}

var stateFields = []string{"version", "accepted", "from", "last", "fires", "skipped", "missed"}

func (s *JobState) read(r *reader) *Error {
	return r.object(stateFields, func(name string) (e *Error) {
		switch name {
		case "version":
			s.Version, e = r.integer(name, 0, MaxFiresBound)
		case "accepted":
			s.Accepted, e = r.instant(name)
		case "from":
			s.From, e = r.instant(name)
		case "last":
			s.Last, e = r.instant(name)
		case "fires":
			s.Fires, e = r.integer(name, 0, MaxFiresBound)
		case "skipped":
			s.Skipped, e = r.integer(name, 0, MaxFiresBound)
		case "missed":
			s.Missed = new(Misfire)
			e = readWord(r, name, misfireWords, s.Missed)
		}
		return e
	})
}

func (s *JobState) append(dst []byte) []byte {
	dst = appendUint(append(dst, `{"version":`...), s.Version)
	for _, t := range [...]struct {
		name string
		at   time.Time
	}{{"accepted", s.Accepted}, {"from", s.From}, {"last", s.Last}} {
		if !t.at.IsZero() {
			dst = appendTime(append(append(append(dst, `,"`...), t.name...), `":`...), t.at)
		}
	}
	dst = appendUint(append(dst, `,"fires":`...), s.Fires)
	dst = appendUint(append(dst, `,"skipped":`...), s.Skipped)
	if s.Missed != nil {
		dst = append(append(append(dst, `,"missed":"`...), s.Missed.String()...), '"')
	}
	return append(dst, '}')
}

// Restored tells what became of some of the jobs that Restore was given.
type Restored struct {
	Jobs      int    // of this answer
	Imported  uint64 // put back
	Unchanged uint64 // there already
	Failed    []RestoreFailure
}

// RestoreFailure is a job that was refused, or whose outcome is unknown.
type RestoreFailure struct {
	ID  string
	Err error // as of Put
}

// Restore puts many jobs back with their states, as Import does, and calls done, one call at a time, for some of them
// together. It returns when all are done, or with the context's error. The whole may be repeated: what stands as it was
// put back, or further on, is left alone. Errors: CodeUnavailable for a service that knows no imports.
func (c *Client) Restore(ctx context.Context, jobs iter.Seq[ImportJob], done func(Restored)) error {
	if !c.imports(ctx) {
		return &Error{Code: CodeUnavailable, Message: "no service answers, or it knows no imports"}
	}
	im := importing{Client: c, ctx: ctx, batches: make(chan *importBatch), again: make(chan struct{}, 1)}
	im.tell = func(b *importBatch, reply ImportReply, err error) {
		r := Restored{Jobs: len(b.at), Imported: reply.Imported, Unchanged: reply.Unchanged}
		for _, f := range reply.Failed {
			if f.Line > len(b.ids) {
				continue // a line that was not sent
			}
			r.Failed = append(r.Failed, RestoreFailure{b.ids[f.Line-1], f.Error})
		}
		if err != nil {
			for _, id := range b.ids {
				r.Failed = append(r.Failed, RestoreFailure{id, err})
			}
		}
		done(r)
	}
	return im.run(jobs)
}
