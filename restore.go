package carillon

import (
	"context"
	"iter"
	"time"
)

// JobState is the state that a job had before, in this service or another. With it an import puts the job back as it was, so
// that its later fires are those that it would have had, at the same times and with the same trigger ids. Accepted and From are
// required, except for a job without a schedule; Version, Fires and Skipped are at most 1<<52.
type JobState struct {
	Version  uint64    // the least that the job gets; an existing job's version does not go back
	Accepted time.Time // what its schedule counts from
	From     time.Time // the earliest fire that is not yet decided (made or skipped); of a completed job, a time after all fires
	Last     time.Time // the latest fire that is decided; zero: none
	Fires    uint64    // scheduled fires so far
	Skipped  uint64    // skipped fires so far

	// Missed takes the place of the job's own policy for fires that, when the job is put back, were due more than a second
	// ago; nil: the job's own policy.
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

// Restored is the outcome for some of the jobs that Restore was given.
type Restored struct {
	Jobs      int    // how many this outcome is for
	Imported  uint64 // put back
	Unchanged uint64 // already as they would be put back, or further on
	Failed    []RestoreFailure
}

// RestoreFailure is a job that was refused, or whose outcome is unknown.
type RestoreFailure struct {
	ID  string
	Err error // one of Put's errors
}

// Restore puts many jobs back with their states, as Import does. It calls done with the outcomes of several jobs together, one call at
// a time. It returns nil when all are done, or the context's error when the context has ended. It may be called again with the same
// jobs: those that are as they were put back, or further on, are left alone. Errors: CodeUnavailable when no service answers, or the
// service does not know imports.
func (c *Client) Restore(ctx context.Context, jobs iter.Seq[ImportJob], done func(Restored)) error {
	if !c.imports(ctx) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Error{Code: CodeUnavailable, Message: "no service answers, or it knows no imports"}
	}
	im := newImporting(ctx, c)
	im.onReply = func(b *importBatch, reply ImportReply, err error) {
		r := Restored{Jobs: len(b.at), Imported: reply.Imported, Unchanged: reply.Unchanged}
		for _, f := range reply.Failed {
			if f.Line > len(b.ids) {
				continue // the reply names a line that was not sent
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
