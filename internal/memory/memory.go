// Package memory has a process use memory as suits an engine.
//
// The collector's default lets the heap double before it looks at it again. With few jobs that is every few megabytes, hundreds of times
// a second under load; with millions it is gigabytes that nothing needs. What suits an engine is a room of about one size, and a share
// of the heap where that is larger.
//
// And an engine that has nothing to do gives back what its last burst took: at once what is free by then, and what a later collection
// frees after it. nats-server keeps the blocks of its streams for a while, and pools live through two collections.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	look      = 2 * time.Second
	roomBytes = 384 << 20
	roomLeast = 50               // percent of the heap
	roomMost  = 800              // percent
	idleAfter = 70 * time.Second // longer than a minute: cron comes again each, and pages given back are cleared anew
	idleBytes = 16 << 20         // less is not worth a collection

	heapLive = "/gc/heap/live:bytes"
)

// collectorSet tells whether the environment says what the collector's percentage is.
func collectorSet() bool {
	_, set := os.LookupEnv("GOGC")
	return set
}

// TendCollector has this process collected as one that is an engine's alone until end, and then as before. It is for
// what an engine is measured beside, and gives back no memory. Where the environment sets GOGC it does nothing. One at
// a time: each ends with the percentage that it found.
func TendCollector() (end func()) {
	if collectorSet() {
		return func() {}
	}
	live := []metrics.Sample{{Name: heapLive}}
	fit := func() (before int) {
		metrics.Read(live)
		return debug.SetGCPercent(gcPercent(live[0].Value.Uint64()))
	}
	before := fit()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(look)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				fit()
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		debug.SetGCPercent(before)
	}
}

// Tend sets the collector's percentage to what fits the heap, again and again until ctx ends, unless the environment sets GOGC, and gives
// back memory while the engine has nothing to do. done counts what it has done: while that stays the same, it is idle.
func Tend(ctx context.Context, done func() uint64) {
	set := collectorSet()
	samples := []metrics.Sample{
		{Name: heapLive},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	var since time.Time // when it was last seen to do something
	var last uint64
	given := false // back what was garbage, since then
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		metrics.Read(samples)
		live, free, objects := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
		if !set {
			debug.SetGCPercent(gcPercent(live))
		}
		now := time.Now()
		if count := done(); count != last || since.IsZero() {
			since, last, given = now, count, false
		}
		if now.Sub(since) >= idleAfter {
			give := toGive(given, live, free, objects) > idleBytes
			if give {
				debug.FreeOSMemory()
			}
			if give || !given {
				trimC()
			}
			given = true
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// toGive is how many bytes a collection would give back: what is free, and at first what is garbage by now. What becomes garbage
// in an idle process later, the runtime collects every two minutes.
func toGive(given bool, live, free, objects uint64) uint64 {
	if given {
		return free
	}
	return free + objects - min(objects, live)
}

// gcPercent is how much a heap may grow before it is collected again.
func gcPercent(live uint64) int {
	return int(min(max(roomBytes*100/max(live, 1), roomLeast), roomMost))
}
