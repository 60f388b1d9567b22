package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// floor is what the machine itself does during a run: how late a bare time.Sleep wakes, how long JetStream takes
// to answer a publish, and how long the disk takes to sync a small write.
type floor struct {
	sleep *hdrhistogram.Histogram // µs
	round *hdrhistogram.Histogram // µs
	sync  *hdrhistogram.Histogram // µs
}

// Each is measured seldom enough to be no load: 200 sleeps, 10 publishes and 10 syncs a second.
const (
	sleepMean  = 5 * time.Millisecond
	roundEvery = 100 * time.Millisecond
	syncEvery  = 100 * time.Millisecond
)

// measureFloor measures until ctx ends. dir is the engine's; if it is empty, no disk is measured.
func measureFloor(ctx context.Context, nc *nats.Conn, stream, dir string, payload []byte) (f floor, err error) {
	ctx, stop := context.WithCancel(ctx)
	machine := watchMachine(ctx, dir, payload)
	defer func() {
		stop()
		beside, e := machine()
		f.sleep, f.sync = beside.sleep, beside.sync
		err = errors.Join(err, e)
	}()
	f.round = newHistogram()

	js, err := jetstream.New(nc)
	if err != nil {
		return f, fmt.Errorf("bench: %w", err)
	}
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamTimeout) // else nobody knows whether there is one to be removed
	_, err = js.CreateStream(making, jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, Storage: jetstream.FileStorage})
	cancel()
	if err != nil {
		return f, fmt.Errorf("bench: side stream: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if e := js.DeleteStream(cleanup, stream); err == nil && e != nil {
			err = fmt.Errorf("bench: side stream: %w", e)
		}
	}()
	t := time.NewTicker(roundEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return f, nil
		case <-t.C:
		}
		began := time.Now()
		_, err := js.Publish(ctx, stream, payload)
		switch {
		case ctx.Err() != nil:
			return f, nil
		case err != nil:
			return f, fmt.Errorf("bench: side stream: %w", err)
		}
		record(f.round, int64(time.Since(began)))
	}
}

// watchMachine measures sleeps and, if dir is not empty, syncs until ctx ends; end waits for that.
func watchMachine(ctx context.Context, dir string, payload []byte) (end func() (floor, error)) {
	f := floor{sleep: newHistogram(), sync: newHistogram()}
	var work sync.WaitGroup
	work.Go(func() { sleepUntilDone(ctx, f.sleep) })
	var err error
	if dir != "" {
		work.Go(func() { err = syncUntilDone(ctx, filepath.Join(dir, "bench.sync"), payload, f.sync) })
	}
	return func() (floor, error) {
		work.Wait()
		return f, err
	}
}

// sleepUntilDone sleeps until a millisecond three to seven ahead, again and again, and records how late it wakes:
// that is how late an engine would be that used nothing better than time.Sleep.
func sleepUntilDone(ctx context.Context, h *hdrhistogram.Histogram) {
	for ctx.Err() == nil {
		due := time.Now().Add(sleepMean*3/5 + rand.N(sleepMean*4/5)).Truncate(time.Millisecond)
		time.Sleep(time.Until(due))
		record(h, time.Now().UnixNano()-due.UnixNano())
	}
}

// syncUntilDone appends to a file and syncs it.
func syncUntilDone(ctx context.Context, path string, payload []byte, h *hdrhistogram.Histogram) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		began := time.Now()
		if _, err := f.Write(payload); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		record(h, int64(time.Since(began)))
	}
}
