package wal

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// scheduler lets one compaction run at a time, as Pebble does by default: the end of one lets the next begin. But none begins
// while the store opens: the flushes of replay would make one due, and pebble.Open would wait for it to end
// (scanObsoleteFiles).
type scheduler struct {
	// Pebble's default scheduler also looks ten times a second whether more compactions may run at once, which costs an idle
	// engine a tenth of a per cent of a core for each store.
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
}

func newScheduler() *scheduler {
	return &scheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule is how Pebble asks whether a compaction may begin. Pebble remembers one that may not.
func (s *scheduler) TrySchedule() (granted bool, grant pebble.CompactionGrantHandle) {
	if !s.opened.Load() {
		return false, nil
	}
	return s.ConcurrencyLimitScheduler.TrySchedule()
}

// open must be called once the store is open.
func (s *scheduler) open() {
	s.opened.Store(true)
	if granted, grant := s.TrySchedule(); granted {
		grant.Done() // lets a compaction begin that waits, as the end of another would
	}
}
