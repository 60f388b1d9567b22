package engine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon"
)

// Extractor takes the jobs out of a partition's checkpoint, each with its state as of the checkpoint, to be put into a running service.
// It is given the pairs of rows and then those of specs, in order, and holds the rows of the selected
// jobs meanwhile. Everything else of the checkpoint is left behind, forced fires included.
type Extractor struct {
	state  *SavedState
	only   carillon.Selection
	rest   arena
	found  []foundRow
	next   int // of found
	sorted bool
}

// NewExtractor begins with the state of a checkpoint.
func NewExtractor(state *SavedState, only carillon.Selection) *Extractor {
	return &Extractor{state: state, only: only}
}

// Rooms are the rooms to be given to Take, in this order.
func (*Extractor) Rooms() []byte { return append(jobRooms[:], roomSpecs) }

// Take takes a pair, and yields the job if the pair completes it. Errors: yield's, ErrCheckpoint.
func (s *Extractor) Take(room byte, key, value []byte, yield func(carillon.ImportJob) error) error {
	if room != roomSpecs {
		return malformed(room, key, s.takeRow(room, key, value))
	}
	s.sortRows()
	at, err := decodeSpecKey(key)
	if err != nil {
		return malformed(room, key, err)
	}
	if s.next == len(s.found) || at.before(s.found[s.next].spec) {
		return nil // no selected job has this spec
	}
	if s.found[s.next].spec != at {
		return s.End()
	}
	s.next++
	j, err := toImportJob(s.rest.get(s.found[s.next-1].row), value)
	if err != nil {
		return malformed(room, key, err)
	}
	if !s.only.Matches(&j.Job) {
		return nil
	}
	return yield(j)
}

// sortRows sorts the rows by their specs, at the first spec: all rows are there by then.
func (s *Extractor) sortRows() {
	if s.sorted {
		return
	}
	s.sorted = true
	slices.SortFunc(s.found, func(a, b foundRow) int { return a.spec.compare(b.spec) })
}

// End must be called after the last pair. It fails if a row's spec was missing. Errors: ErrCheckpoint.
func (s *Extractor) End() error {
	if s.next == len(s.found) {
		return nil
	}
	return fmt.Errorf("%w: the spec of put %d is missing", ErrCheckpoint, s.found[s.next].spec.put)
}

func (s *Extractor) takeRow(room byte, key, value []byte) error {
	if err := checkRow(room, key, value); err != nil {
		return err
	}
	if room == roomCompleted && s.state.machine.expired.passedKey(key) {
		return nil
	}
	r := row(slices.Concat([]byte{room}, key, value))
	j, err := decodeRow(r)
	if err != nil || !strings.HasPrefix(string(j.id), s.only.Prefix) {
		return err
	}
	spec, _ := r.names()
	s.found = append(s.found, foundRow{spec: spec, row: s.rest.add(r)})
	return nil
}

// toImportJob converts a job to the form of an import.
func toImportJob(r row, s []byte) (p carillon.ImportJob, err error) {
	j, err := decodeRow(r)
	if err != nil {
		return p, err
	}
	if p.Job, err = decodeSpec(bytes.Clone(s)); err != nil {
		return p, err
	}
	p.Job.ID, p.Paused = string(j.id), j.status == statusPaused
	from := j.next
	switch {
	case j.status == statusCompleted:
		from++ // next is when it completed
	case j.next == none:
		from = 0
	case j.extra.skipTo > 0: // fires missed while it was paused are decided
		from = max(from, j.extra.skipTo+1)
	case j.extra.counted > 0:
		from = j.extra.countedFirst
	}
	p.State = &carillon.JobState{
		Version: j.version, Accepted: fromMilli(j.accepted), From: fromMilli(from), Last: fromMilli(j.last), Fires: j.fires, Skipped: j.extra.skipped,
	}
	return p, nil
}
