package node

import (
	"context"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// SnapshotJobs are the jobs of a snapshot, to be put into a running service.
type SnapshotJobs struct {
	Manifest *archive.Manifest
	Jobs     int // an upper bound: completed jobs whose retention is over may be counted

	target archive.Target
	states []*engine.SavedState
}

// OpenJobs opens the jobs of a snapshot; id "" is the newest. Errors: those of Restore.
func OpenJobs(ctx context.Context, t archive.Target, id string) (*SnapshotJobs, error) {
	m, err := archive.Get(ctx, t, id)
	if err != nil {
		return nil, err
	}
	_, states, err := newRestored(m)
	if err != nil {
		return nil, err
	}
	s := &SnapshotJobs{Manifest: m, target: t, states: states}
	for _, of := range states {
		s.Jobs += of.Jobs
	}
	return s, nil
}

// All yields the selected jobs with their states, one partition after the other. While it reads a partition, it holds the selected jobs
// of that partition in memory, without their specs. Errors: yield's, *archive.Damage, engine.ErrCheckpoint, the archive's.
func (s *SnapshotJobs) All(ctx context.Context, only carillon.Selection, yield func(carillon.ImportJob) error) error {
	for p, state := range s.states {
		extractor := engine.NewExtractor(state, only)
		for _, room := range extractor.Rooms() {
			take := func(key, value []byte) error { return extractor.Take(room, key, value, yield) }
			if err := archive.ReadRoom(ctx, s.target, s.Manifest, p, room, nil, take); err != nil {
				return err
			}
		}
		if err := extractor.End(); err != nil {
			return err
		}
	}
	return nil
}
