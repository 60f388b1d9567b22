package bench

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cespare/xxhash/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// soakStream is how far an output stream has been read.
type soakStream struct{ seq, output uint64 }

// judgeRound makes the worker judge a batch and the recurring jobs of its round, reads the streams, looks at
// the engine's process, and reports all of it.
func (s *soak) judgeRound(ctx context.Context, b *soakBatch) error {
	// By the middle of the next round all fires are over, also those that were moved.
	if err := sleepUntil(ctx, s.at(b.round+1).Add(s.Round/2)); err != nil {
		return err
	}
	if err := b.settled(ctx); err != nil {
		return err
	}
	recurring := *s.base
	recurring.From, recurring.To = s.at(b.round).UnixMilli(), s.at(b.round+1).UnixMilli()
	round := SoakRound{Since: time.Duration(b.round+1) * s.Round}
	b.forced.To = time.Now().Add(time.Second).UnixMilli() // forced fires that an outage held up are expected, too
	received := newHistogram()
	stop := context.AfterFunc(ctx, func() { _ = s.worker.cmd.Process.Kill() }) // fails only when it has ended, which is as good
	defer stop()
	for _, p := range []*plan{&recurring, &b.shots, &b.forced} {
		p.Kills = s.KillEvery > 0
		if err := s.worker.send(p); err != nil {
			return err
		}
		report, err := s.worker.report()
		if err != nil {
			return err
		}
		round.Checks.add(report.Checks)
		round.Missing = append(round.Missing, report.Missing...)
		if p.Forced {
			continue // a forced fire has no due time for which it could be late
		}
		h, err := decode(report.Received)
		if err != nil {
			return err
		}
		received.Merge(h)
	}
	b.judgedAt = time.Now()
	close(b.judged)
	if err := s.look(ctx, &round); err != nil {
		return err
	}
	s.mu.Lock()
	commands := s.commands
	s.commands = newHistogram()
	s.mu.Unlock()
	s.allCommands.Merge(commands)
	s.received.Merge(received)
	if round.Killed {
		s.afterKill.Merge(received)
	} else {
		s.withoutKills.Merge(received)
	}
	ms := func(h *hdrhistogram.Histogram, q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	round.Triggers, round.P50, round.P99, round.Max = int(received.TotalCount()), ms(received, 50), ms(received, 99), ms(received, 100)
	round.Commands, round.CommandP99 = int(commands.TotalCount()), ms(commands, 99)
	s.rounds = append(s.rounds, round)
	s.Report(round)
	return nil
}

// look reads the streams and the engine's process.
func (s *soak) look(ctx context.Context, round *SoakRound) error {
	s.process.Lock()
	defer s.process.Unlock()
	if err := s.follow(ctx, &round.Checks); err != nil {
		return err
	}
	from, to := s.begin.Add(round.Since-s.Round), s.begin.Add(round.Since+s.Round/2) // some fires were moved
	for _, killed := range s.kills {
		round.Killed = round.Killed || killed.Before(to) && killed.Add(soakRecovers).After(from)
	}
	u := s.engine.usage()
	now := time.Now()
	round.CPU = 100 * (u.cpu - s.cpu).Seconds() / now.Sub(s.looked).Seconds()
	s.cpu, s.looked = u.cpu, now
	round.ResidentMiB = u.residentMiB
	if s.engine.dir != "" {
		round.DiskMiB = dirMiB(filepath.Join(s.engine.dir, "data"))
	}
	return nil
}

// ends notes where each output stream ends before the run.
func (s *soak) ends(ctx context.Context) error {
	s.streams = make([]soakStream, s.engine.partitions)
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for p := range s.streams {
		stream, err := js.Stream(ctx, s.engine.Names.OutStream(p))
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		s.streams[p].seq = stream.CachedInfo().State.LastSeq
	}
	return nil
}

// follow reads what the output streams have stored since the previous call, and checks that the numbers go on and that
// no trigger is there twice.
func (s *soak) follow(ctx context.Context, checks *Checks) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s.ids, s.idsBefore = make(map[uint64]struct{}), s.ids
	for p := range s.streams {
		name, at := s.engine.Names.OutStream(p), &s.streams[p]
		var lost error
		each := func(m jetstream.Msg) {
			meta, err := m.Metadata()
			if err != nil {
				return // no message of a stream
			}
			if meta.Sequence.Stream > at.seq+1 {
				lost = fmt.Errorf("bench: %s dropped messages %d to %d before they were read: shorten the rounds or lengthen its retention", name, at.seq+1, meta.Sequence.Stream-1)
			}
			at.seq = meta.Sequence.Stream
			number, err := strconv.ParseUint(m.Headers().Get(carillon.HeaderOutput), 10, 64)
			switch {
			case err != nil:
				return // foreign
			case at.output == 0 || number == at.output+1:
			case number <= at.output:
				checks.Duplicate++
			default:
				checks.Gaps += int(number - at.output - 1)
			}
			at.output = max(at.output, number)
			if id := m.Headers().Get(carillon.HeaderTrigger); id != "" {
				h := xxhash.Sum64String(id)
				_, again := s.ids[h]
				_, before := s.idsBefore[h]
				checks.Duplicate += bit(again || before)
				s.ids[h] = struct{}{}
			}
		}
		err := s.retryRead(ctx, func() error { return readStream(ctx, js, name, from{seq: at.seq + 1}, each) })
		if err := cmp.Or(err, lost); err != nil {
			return fmt.Errorf("bench: read %s: %w", name, err)
		}
	}
	return nil
}

// retryRead calls read until that succeeds, for at most soakRetry: a disk that stands still must not end a run of hours.
func (s *soak) retryRead(ctx context.Context, read func() error) error {
	patience := time.Now().Add(soakRetry)
	for {
		err := read()
		if err == nil || time.Now().After(patience) || sleepUntil(ctx, time.Now().Add(time.Second)) != nil {
			return err
		}
		s.repeated.Add(1)
	}
}

// sum makes the figures of all rounds.
func (s *soak) sum() (err error) {
	if len(s.rounds) == 0 {
		return nil
	}
	r := s.result
	r.Checks, r.Series = &Checks{}, make(map[string][]Point)
	var resident, disk, cpu []float64
	triggers, commands := 0, 0
	for _, round := range s.rounds {
		r.Checks.add(round.Checks)
		triggers, commands = triggers+round.Triggers, commands+round.Commands
		resident, disk, cpu = append(resident, round.ResidentMiB), append(disk, round.DiskMiB), append(cpu, round.CPU)
		values := map[string]float64{
			"received_p50_ms": round.P50, "received_p99_ms": round.P99, "received_max_ms": round.Max, "command_p99_ms": round.CommandP99,
			"triggers_per_s": float64(round.Triggers) / s.Round.Seconds(),
		}
		if s.engine.dir != "" { // not known of a service that runs already
			values["resident_mib"], values["disk_mib"], values["engine_cpu_percent"] = round.ResidentMiB, round.DiskMiB, round.CPU
		}
		for name, v := range values {
			r.Series[name] = append(r.Series[name], Point{round.Since.Seconds(), v})
		}
	}
	took := s.rounds[len(s.rounds)-1].Since
	f := &r.Figures
	f.add("soaked_s", took.Seconds())
	f.add("triggers_per_s", float64(triggers)/took.Seconds())
	f.add("commands_per_s", float64(commands)/took.Seconds())
	f.quantiles("received", s.received, 50, 90, 99, 99.9, 99.99, 100)
	f.quantiles("command", s.allCommands, 50, 99, 99.9, 100)
	f.add("reads_repeated", float64(s.repeated.Load()))
	f.add("kills", float64(len(s.kills)))
	if len(s.kills) > 0 {
		f.add("ready_max_s", s.ready.Seconds())
		f.quantiles("received_after_kill", s.afterKill, 50, 99, 100)
		f.quantiles("received_without_kills", s.withoutKills, 50, 90, 99, 99.9, 99.99, 100)
	}
	if s.engine.dir != "" {
		f.add("resident_first_mib", resident[0])
		f.add("resident_last_mib", resident[len(resident)-1])
		f.add("resident_max_mib", slices.Max(resident))
		f.add("resident_growth_mib_per_h", slope(resident[len(resident)/2:], s.Round.Hours()))
		f.add("disk_first_mib", disk[0])
		f.add("disk_last_mib", disk[len(disk)-1])
		f.add("disk_max_mib", slices.Max(disk))
		f.add("disk_growth_mib_per_h", slope(disk[len(disk)/2:], s.Round.Hours()))
		f.add("engine_cpu_percent", median(cpu))
	}
	r.Histograms = make(map[string]string)
	histograms := map[string]*hdrhistogram.Histogram{"received_us": s.received, "command_us": s.allCommands}
	if len(s.kills) > 0 {
		histograms["received_after_kill_us"], histograms["received_without_kills_us"] = s.afterKill, s.withoutKills
	}
	for name, h := range histograms {
		if h.TotalCount() == 0 {
			continue
		}
		if r.Histograms[name], err = encode(h); err != nil {
			return err
		}
	}
	return nil
}

// slope is the slope of the least-squares line through values that are step apart; 0 for fewer than two values.
func slope(v []float64, step float64) float64 {
	n := float64(len(v))
	var mean, sxy, sxx float64
	for _, y := range v {
		mean += y / n
	}
	for i, y := range v {
		x := float64(i) - (n-1)/2
		sxy += x * (y - mean)
		sxx += x * x
	}
	if sxx == 0 {
		return 0
	}
	return sxy / sxx / step
}
