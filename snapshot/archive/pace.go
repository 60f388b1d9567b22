package archive

import (
	"context"
	"time"
)

// pace holds a save back, or a partition that is taken, so that what runs beside it does not wait for a core or the disk.
type pace struct {
	share, rate float64
	begun       time.Time
	done        float64   // bytes
	since       int       // bytes since the clock was read
	resumed     time.Time // after the last rest
}

const (
	paceBytes = 16 << 10         // between two looks at the clock
	burst     = time.Millisecond // of work, at the least, between two rests
)

func newPace(share, rate float64) *pace {
	now := time.Now()
	return &pace{share: share, rate: rate, begun: now, resumed: now}
}

// step counts bytes of work done, and rests when it is time to. Errors: the context's.
func (p *pace) step(ctx context.Context, n int) error {
	if p.since += n; p.since < paceBytes {
		return nil
	}
	p.done += float64(p.since)
	p.since = 0
	now := time.Now()
	rest := p.rest(now)
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

// rest says how long to rest now.
func (p *pace) rest(now time.Time) time.Duration {
	var rest time.Duration
	if worked := now.Sub(p.resumed); p.share < 1 && worked >= burst {
		rest = time.Duration(float64(worked) * (1 - p.share) / p.share)
	}
	if p.rate > 0 {
		ahead := time.Duration(p.done/p.rate*float64(time.Second)) - now.Sub(p.begun)
		if ahead >= burst {
			rest = max(rest, ahead)
		}
	}
	return rest
}
