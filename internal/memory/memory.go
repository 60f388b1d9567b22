// Package memory makes a process use memory as suits an engine.
//
// By default the garbage collector lets the heap double before it runs again. With few jobs that is a collection every few megabytes,
// hundreds a second under load; with millions of jobs it is gigabytes that nothing needs. What suits an engine is to let the heap grow
// by about the same amount each time, or by a share of the heap if that is more.
//
// An engine that has nothing to do gives back the memory of its last burst: at once what is free or garbage by then, and afterwards what
// later collections free. nats-server keeps the blocks of its streams for a while, and pools survive two collections.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	look        = 2 * time.Second
	growthBytes = 384 << 20
	minGrowth   = 50               // percent of the heap
	maxGrowth   = 800              // percent
	idleAfter   = 70 * time.Second // over a minute: cron jobs often fire each minute, and returned pages are cleared before their next use
	idleBytes   = 16 << 20         // less is not worth a collection

	heapLive = "/gc/heap/live:bytes"
)

// collectorSet tells whether the environment sets the collector's percentage (GOGC).
func collectorSet() bool {
	_, set := os.LookupEnv("GOGC")
	return set
}

// TendCollector makes this process's garbage collector work as in a process that is an engine, until end, and then as
// before. It is for measurements that an engine is compared with, and gives back no memory. If the environment sets GOGC,
// it does nothing. Only one may be in force at a time: each ends by restoring the percentage that it found.
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
// back memory while the engine has nothing to do. done counts what the engine has done: while the count stays the same, the engine is
// idle.
func Tend(ctx context.Context, done func() uint64) {
	set := collectorSet()
	samples := []metrics.Sample{
		{Name: heapLive},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	var since time.Time // when the engine was last seen to do something
	var last uint64
	given := false // whether the garbage has been given back since then
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

// toGive is how many bytes a collection would give back: what is free and, the first time, what is garbage. Later garbage of an
// idle process is collected by the runtime every two minutes.
func toGive(given bool, live, free, objects uint64) uint64 {
	if given {
		return free
	}
	return free + objects - min(objects, live)
}

// gcPercent is how much a heap may grow before it is collected again.
func gcPercent(live uint64) int {
	return int(min(max(growthBytes*100/max(live, 1), minGrowth), maxGrowth))
}
