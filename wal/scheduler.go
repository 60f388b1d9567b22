package wal

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// scheduler lets one compaction run at a time, Pebble's default: who ends lets the next begin. None begins while the store
// opens: what replay flushes makes one due, and before pebble.Open returns it waits for that to end (scanObsoleteFiles).
type scheduler struct {
	// The default one looks ten times a second besides whether more may run at once, which costs an idle engine a tenth of
	// a per cent of a core each.
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
}

func newScheduler() *scheduler {
	return &scheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule is Pebble's question whether a compaction may begin. One that may not is remembered there.
func (s *scheduler) TrySchedule() (granted bool, grant pebble.CompactionGrantHandle) {
	if !s.opened.Load() {
		return false, nil
	}
	return s.ConcurrencyLimitScheduler.TrySchedule()
}

// open is called once the store is open.
func (s *scheduler) open() {
	s.opened.Store(true)
	if granted, grant := s.TrySchedule(); granted {
		grant.Done() // as the end of a compaction would, it has the one begin that waits
	}
}
