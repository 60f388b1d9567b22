package bench

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// drive carries out what is done with a batch, each command at its time, whatever the answers. The latency of a command that has to
// wait for room still counts from its time.
func (s *soak) drive(ctx context.Context, b *soakBatch) {
	err := sendOnTime(ctx, len(b.ops), func(i int) time.Time { return time.Unix(0, b.ops[i].at) }, func(i int, _ time.Time) error {
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.work.Go(func() {
			defer func() { <-s.room }()
			if err := s.do(ctx, b, b.ops[i]); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("bench: round %d, job %d: %w", b.round, b.ops[i].job, err))
			}
		})
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.fail(err)
	}
}

// do carries out one command. Once that is answered, do changes the batch's plan accordingly.
func (s *soak) do(ctx context.Context, b *soakBatch, op soakOp) error {
	i := int(op.job)
	shot, forced := b.shots.Prefix+strconv.Itoa(i), b.forced.Prefix+strconv.Itoa(i)
	due, planned := s.due(b, i), time.Unix(0, op.at)
	if op.kind.planned() {
		defer b.open.Add(-1)
	}
	switch op.kind {
	case soakPut:
		err := s.put(ctx, planned, s.shot(shot, due, s.payload))
		b.put[i].Store(err == nil)
		return err
	case soakDelete:
		planned, err := b.over(ctx, planned)
		if err != nil {
			return err
		}
		return s.delete(ctx, planned, shot)
	case soakPutForced:
		err := s.put(ctx, planned, carillon.Job{ID: forced, Topic: topic, Payload: s.payload})
		b.putForced[i].Store(err == nil)
		return err
	case soakDeleteForced:
		planned, err := b.over(ctx, planned)
		if err != nil {
			return err
		}
		return s.delete(ctx, planned, forced)
	}
	if op.kind == soakForce {
		if !b.putForced[i].Load() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.forced.First[i] = -1
			return nil
		}
		return s.retryCommand(ctx, planned, func(request string) error {
			_, err := s.client.Fire(ctx, forced, carillon.RequestID(request))
			return err
		})
	}
	if !b.put[i].Load() {
		return nil // the put waits for an engine that was killed: this job stays as it is
	}
	switch op.kind {
	case soakCancel:
		err := s.delete(ctx, planned, shot)
		b.prevented(i, due)
		return err
	case soakMove:
		to := due + 1 + rand.N(s.Round.Milliseconds()/2-1)
		err := s.put(ctx, planned, s.shot(shot, to, s.payload))
		b.prevented(i, due)
		b.moved(i, to)
		return err
	case soakReplace: // due as before
		payload := slices.Clone(s.payload)
		payload[1] = 'y'
		return s.put(ctx, planned, s.shot(shot, due, payload))
	case soakPauseOver:
		if err := s.change(ctx, planned, s.client.Pause, shot); err != nil {
			return err
		}
		b.prevented(i, due)
		resume := later(time.Now(), time.UnixMilli(due).Add(soakNearest/2))
		if err := sleepUntil(ctx, resume); err != nil {
			return err
		}
		return s.change(ctx, resume, s.client.Resume, shot)
	}
	err := s.change(ctx, planned, s.client.Pause, shot)
	if err == nil {
		err = s.change(ctx, time.Now(), s.client.Resume, shot)
	}
	if !inTime(due) { // then the fire may have been skipped
		b.prevented(i, due)
	}
	return err
}

func (s *soak) shot(id string, due int64, payload []byte) carillon.Job {
	return carillon.Job{ID: id, Topic: topic, Payload: payload, Schedule: "@at " + time.UnixMilli(due).UTC().Format(carillon.TimeFormat)}
}

// later is the later of two times: a command that follows another one is planned for the time of that one's answer at the earliest.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *soak) put(ctx context.Context, planned time.Time, job carillon.Job) error {
	return s.retryCommand(ctx, planned, func(request string) error {
		_, err := s.client.Put(ctx, job, carillon.RequestID(request))
		return err
	})
}

// delete deletes a job. A job that does not exist any more counts as deleted.
func (s *soak) delete(ctx context.Context, planned time.Time, id string) error {
	return s.retryCommand(ctx, planned, func(request string) error {
		_, err := s.client.Delete(ctx, id, carillon.RequestID(request))
		if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
			return nil
		}
		return err
	})
}

// change pauses or resumes a job.
func (s *soak) change(ctx context.Context, planned time.Time, do func(context.Context, string, ...carillon.CommandOption) (carillon.JobReply, error), id string) error {
	return s.retryCommand(ctx, planned, func(request string) error {
		_, err := do(ctx, id, carillon.RequestID(request))
		return err
	})
}

// retryCommand repeats a command, under one request id, until the service has answered it. The latency counts from the planned time, so
// that waiting behind other commands counts; the time for which it is repeated counts from when it was first sent.
func (s *soak) retryCommand(ctx context.Context, planned time.Time, do func(request string) error) error {
	request, began := cryptorand.Text(), time.Now()
	for {
		err := do(request)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_, answered := errors.AsType[*carillon.Error](err) // else it is an error of the connection
		if err == nil || answered && !isTransient(err) || time.Since(began) > soakRetry {
			s.mu.Lock()
			defer s.mu.Unlock()
			record(s.commands, int64(time.Since(planned)))
			return err
		}
		if errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) { // there is no room, and asking at once would not make any
			if err := sleepUntil(ctx, time.Now().Add(soakPause)); err != nil {
				return err
			}
		}
	}
}

// killer kills the engine again and again, as long as the rounds last.
func (s *soak) killer(ctx context.Context) {
	for at := s.KillEvery; at < s.Duration; at += s.KillEvery {
		if sleepUntil(ctx, s.begin.Add(at)) != nil {
			return
		}
		if err := s.kill(ctx); err != nil {
			return
		}
	}
}

// watch ends the run if the engine ends otherwise than by a kill. Why it ended is said when the engine is closed.
func (s *soak) watch(ctx context.Context) {
	for {
		s.process.Lock()
		gone := s.engine.gone
		s.process.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-gone:
		}
		s.process.Lock() // a kill holds it until the engine runs again
		startedAgain := s.engine.gone != gone
		s.process.Unlock()
		if !startedAgain {
			s.fail(errEngineEnded)
			return
		}
	}
}

var errEngineEnded = errors.New("bench: the run is over, as its engine is")

func (s *soak) kill(ctx context.Context) (err error) {
	s.process.Lock()
	defer s.process.Unlock()
	defer func() {
		if err != nil {
			s.fail(err) // before watch can see that the engine does not run
		}
	}()
	if err := s.engine.kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := s.engine.start(ctx, strings.TrimPrefix(s.engine.url, "nats://"), nil); err != nil {
		return err
	}
	s.kills = append(s.kills, killed)
	s.cpu, s.looked = 0, killed
	s.ready = max(s.ready, time.Since(killed))
	for !s.nc.IsConnected() { // whoever waits for the lock is going to send a request
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}
