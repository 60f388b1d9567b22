package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// outputs are the output streams of an engine.
type outputs struct {
	names    carillon.Names
	nc       *nats.Conn // the caller's to close
	js       jetstream.JetStream
	streams  []jetstream.Stream // by partition
	mode     jetstream.PersistModeType
	maxBytes int64 // how many bytes each keeps; -1: no limit
}

func (e *engine) outputs(ctx context.Context) (o *outputs, err error) {
	o = &outputs{names: e.Names, streams: make([]jetstream.Stream, e.partitions)}
	if o.nc, err = e.Connect(e.url); err != nil {
		return nil, fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer func() {
		if err != nil {
			o.nc.Close()
		}
	}()
	if o.js, err = jetstream.New(o.nc); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	for p := range o.streams {
		if o.streams[p], err = o.js.Stream(ctx, o.names.OutStream(p)); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		c := o.streams[p].CachedInfo().Config
		o.mode = c.PersistMode
		if p == 0 || c.MaxBytes >= 0 && (o.maxBytes < 0 || c.MaxBytes < o.maxBytes) {
			o.maxBytes = c.MaxBytes
		}
	}
	return o, nil
}

// overhead is an upper bound of what a stored trigger takes besides its payload: subject, headers, record. Bytes.
const overhead = 512

// holds checks that the streams can keep so many triggers, which are spread over them evenly enough.
func (o *outputs) holds(triggers, payloadBytes int) error {
	need := int64(triggers) * int64(payloadBytes+overhead) / int64(len(o.streams))
	if o.maxBytes < 0 || o.maxBytes >= need {
		return nil
	}
	return fmt.Errorf("bench: %s keeps %d MiB, and the %d triggers of a turn take up to %d MiB in each stream: use fewer, or an engine whose streams were made with --out-max-bytes %d",
		o.names.OutStream(0), o.maxBytes>>20, triggers, need>>20, need)
}

// ends returns the last sequences, by partition.
func (o *outputs) ends(ctx context.Context) ([]uint64, error) {
	ends := make([]uint64, len(o.streams))
	for p, s := range o.streams {
		info, err := s.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		ends[p] = info.State.LastSeq
	}
	return ends, nil
}

// stored counts the triggers of a topic.
func (o *outputs) stored(ctx context.Context, topic string) (n int, err error) {
	for p, s := range o.streams {
		subject := o.names.Trigger(p, topic)
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
		if err != nil {
			return n, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		n += int(info.State.Subjects[subject])
	}
	return n, nil
}

// lookEvery is the time between two looks: short enough to end soon, and long enough to be no load.
const lookEvery = 200 * time.Millisecond

// await waits until all triggers of a burst are stored, or none was stored for as long as patience.
func (o *outputs) await(ctx context.Context, s *jobBurst) error {
	most, news := 0, time.Now()
	for {
		n, err := o.stored(ctx, s.topic())
		if err != nil {
			return err
		}
		s.progress("triggers stored", n, s.triggers())
		if n > most {
			most, news = n, time.Now()
		}
		if n >= s.triggers() || time.Since(news) > patience && time.Now().UnixMilli() > s.To {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// tally reads what the streams hold beyond their former ends. It calls each when it first sees an expected trigger
// (its job, when it was due and when stored, unix ns), and checks that output numbers go on without a gap.
func (o *outputs) tally(ctx context.Context, after []uint64, s *jobBurst, each func(job int, due, stored int64)) (c Checks, err error) {
	c.Expected = s.triggers()
	seen := make([]bool, c.Expected)
	known := make([]bool, len(s.First)) // by job: whether its offset is known
	read := 0
	for p := range o.streams {
		before, counting := uint64(0), after[p] == 0
		err := readStream(ctx, o.js, o.names.OutStream(p), from{seq: max(after[p], 1)}, func(m jetstream.Msg) {
			h := m.Headers()
			number, err := strconv.ParseUint(h.Get(carillon.HeaderOutput), 10, 64)
			meta, err2 := m.Metadata()
			if err != nil || err2 != nil {
				return // foreign
			}
			if read++; read%progressStep == 0 {
				s.progress("reading", read, c.Expected)
			}
			switch {
			case !counting:
				counting = true
			case number <= before:
				c.Duplicate++
			default:
				c.Gaps += int(number - before - 1)
			}
			before = max(before, number)
			id, due, _, ok := carillon.SplitTriggerID(h.Get(carillon.HeaderTrigger))
			i, ours := s.index(id)
			if !ok || !ours {
				return // an event, or somebody else's
			}
			if s.spread > 0 && !known[i] && due >= s.From {
				s.First[i], known[i] = (due-s.From)%everySecond, true
			}
			k, planned := s.fireIndex(i, due)
			if !planned {
				c.Stray++
				return
			}
			stored := meta.Timestamp.UnixNano()
			if stored < due*1e6 {
				c.Early++
			}
			if at := &seen[i*s.fires+k]; *at {
				c.Duplicate++
			} else {
				*at = true
				each(i, due*1e6, stored)
			}
		})
		if err != nil {
			return c, fmt.Errorf("bench: read %s: %w", o.names.OutStream(p), err)
		}
	}
	for _, yes := range seen {
		if !yes {
			c.Missing++
		}
	}
	return c, nil
}

// progressStep is how many items are dealt with between two reports of progress.
const progressStep = 1 << 14

// rates returns the rate a second of all and of the middle 90 % of some times in ns. It sorts them.
func rates(times []int64) (all, middle float64) {
	slices.Sort(times)
	rate := func(t []int64) float64 {
		if len(t) < 2 || t[0] == t[len(t)-1] {
			return 0
		}
		return float64(len(t)) / time.Duration(t[len(t)-1]-t[0]).Seconds()
	}
	cut := len(times) / 20
	return rate(times), rate(times[cut : len(times)-cut])
}
