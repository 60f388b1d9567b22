package archive

import (
	"context"
	"time"
)

// pace slows a save or the restore of a part down, so that what runs beside it need not wait for a core or the disk.
type pace struct {
	share   float64   // of the time, in which to work
	since   int       // bytes since the clock was read
	resumed time.Time // when the last rest ended
}

const (
	paceBytes = 16 << 10         // between two looks at the clock
	burst     = time.Millisecond // the least time of work between two rests
)

func newPace(share float64) *pace { return &pace{share: share, resumed: time.Now()} }

// step counts bytes of work done, and rests when it is time to. Errors: the context's.
func (p *pace) step(ctx context.Context, n int) error {
	if p.since += n; p.since < paceBytes {
		return nil
	}
	p.since = 0
	rest := p.rest(time.Now())
	if rest <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.resumed = time.Now()
	return nil
}

// rest says how long to rest now; 0 if it is not time yet.
func (p *pace) rest(now time.Time) time.Duration {
	worked := now.Sub(p.resumed)
	if worked < burst {
		return 0
	}
	return time.Duration(float64(worked) * (1 - p.share) / p.share)
}
