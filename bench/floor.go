package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// floor is what the machine does beside a run: how late a bare time.Sleep wakes, and how long JetStream
// takes to answer a publish.
type floor struct {
	sleep *hdrhistogram.Histogram // µs
	round *hdrhistogram.Histogram // µs
}

// Both are asked for seldom enough to be no load: 200 sleeps and 10 publishes a second.
const (
	sleepMean  = 5 * time.Millisecond
	roundEvery = 100 * time.Millisecond
)

// measureFloor measures until ctx ends.
func measureFloor(ctx context.Context, nc *nats.Conn, stream string, payload []byte) (f floor, err error) {
	f = floor{newHistogram(), newHistogram()}
	var sleeping sync.WaitGroup
	sleeping.Go(func() { sleepUntilDone(ctx, f.sleep) })
	defer sleeping.Wait()

	js, err := jetstream.New(nc)
	if err != nil {
		return f, fmt.Errorf("bench: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, Storage: jetstream.FileStorage})
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

// sleepUntilDone sleeps to one millisecond after the other, three to seven ahead, and records how late it
// wakes: what an engine does that knows nothing better than time.Sleep.
func sleepUntilDone(ctx context.Context, h *hdrhistogram.Histogram) {
	for ctx.Err() == nil {
		due := time.Now().Add(sleepMean*3/5 + rand.N(sleepMean*4/5)).Truncate(time.Millisecond)
		time.Sleep(time.Until(due))
		record(h, time.Now().UnixNano()-due.UnixNano())
	}
}
