package archive

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon/snapshot"
)

// routed restores through Route: for each room it merges the streams of all partitions by the new keys, and hands each
// pair to the goroutine that writes its new partition.
func (r *restorer) routed(ctx context.Context, table *snapshot.Table) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	writers := make([]*fillWriter, r.o.Partitions)
	var writing sync.WaitGroup
	for i := range writers {
		fill, err := table.BulkLoad(uint16(i))
		if err != nil {
			cancel(err)
			writers = writers[:i]
			break
		}
		defer fill.Abort()
		w := &fillWriter{fill: fill, batches: make(chan []routedPair, 4)}
		writers[i] = w
		writing.Go(func() {
			if err := w.write(); err != nil {
				cancel(err)
			}
		})
	}
	if ctx.Err() == nil {
		if err := r.merge(ctx, writers); err != nil {
			cancel(err)
		}
	}
	for _, w := range writers {
		w.flush()
		close(w.batches)
	}
	writing.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	states, err := r.states()
	if err != nil {
		return err
	}
	for i, w := range writers {
		if _, err := w.fill.Commit(states[i].Position, states[i].State); err != nil {
			return err
		}
	}
	return nil
}

// merge hands all pairs to the writers.
func (r *restorer) merge(ctx context.Context, writers []*fillWriter) error {
	var rooms []string
	for _, p := range r.manifest.Partitions {
		for _, room := range p.Rooms {
			rooms = append(rooms, room.Room)
		}
	}
	slices.Sort(rooms)
	for _, room := range slices.Compact(rooms) {
		if err := r.mergeRoom(ctx, room, writers); err != nil {
			return err
		}
	}
	return nil
}

func (r *restorer) mergeRoom(ctx context.Context, name string, writers []*fillWriter) (err error) {
	var sources sourceHeap
	var all []*source
	defer func() {
		for _, s := range all {
			if cerr := s.close(); err == nil {
				err = cerr
			}
		}
	}()
	for i := range r.manifest.Partitions {
		p := &r.manifest.Partitions[i]
		at := slices.IndexFunc(p.Rooms, func(room Room) bool { return room.Room == name })
		if at < 0 {
			continue
		}
		s := &source{stream: r.open(ctx, p.Partition, &p.Rooms[at])}
		all = append(all, s)
		more, err := r.route(s)
		if err != nil {
			return err
		}
		if more {
			sources = append(sources, s)
		}
	}
	heap.Init(&sources)
	for len(sources) > 0 {
		s := sources[0]
		writers[s.to].add(name[0], s.key, s.value)
		more, err := r.route(s)
		if err != nil {
			return err
		}
		if more {
			heap.Fix(&sources, 0)
		} else {
			heap.Pop(&sources)
		}
	}
	return nil
}

// source is a stream with its current pair routed.
type source struct {
	*stream
	to         uint16 // the pair's new partition
	key, value []byte // copies of its new key and value
}

// route steps to the source's next pair that is kept, and routes it.
func (r *restorer) route(s *source) (more bool, err error) {
	for s.next() {
		to, keep, err := r.o.Route(s.partition, s.room.Room[0], s.stream.key, s.stream.value)
		if err != nil {
			return false, err
		}
		if !keep {
			continue
		}
		if int(to.Partition) >= r.o.Partitions {
			return false, fmt.Errorf("snapshot archive: routed to partition %d of %d", to.Partition, r.o.Partitions)
		}
		s.to = to.Partition
		s.key, s.value = append(s.key[:0], to.Key...), append(s.value[:0], to.Value...)
		return true, nil
	}
	return false, s.err
}

// sourceHeap orders sources by their keys.
type sourceHeap []*source

func (h sourceHeap) Len() int { return len(h) }
func (h sourceHeap) Less(i, j int) bool {
	if c := bytes.Compare(h[i].key, h[j].key); c != 0 {
		return c < 0
	}
	return h[i].partition < h[j].partition
}
func (h sourceHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *sourceHeap) Push(x any)   { *h = append(*h, x.(*source)) }
func (h *sourceHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// routedPair is a pair on its way to a writer.
type routedPair struct {
	room       byte
	key, value []byte
}

// fillWriter writes a new partition, in a goroutine of its own.
type fillWriter struct {
	fill    *snapshot.BulkLoad
	batches chan []routedPair
	batch   []routedPair
	arena   []byte
}

const (
	routeBatch = 512
	routeArena = 64 << 10
)

func (w *fillWriter) add(room byte, key, value []byte) {
	n := len(key) + len(value)
	if cap(w.arena)-len(w.arena) < n {
		w.arena = make([]byte, 0, max(routeArena, n))
	}
	at := len(w.arena)
	w.arena = append(append(w.arena, key...), value...)
	w.batch = append(w.batch, routedPair{room, w.arena[at : at+len(key)], w.arena[at+len(key):]})
	if len(w.batch) == routeBatch {
		w.flush()
	}
}

func (w *fillWriter) flush() {
	if len(w.batch) > 0 {
		w.batches <- w.batch
		w.batch = make([]routedPair, 0, routeBatch)
	}
}

// write writes batches until there are no more. After an error it still takes them, so that flush does not block.
func (w *fillWriter) write() (err error) {
	for batch := range w.batches {
		for _, p := range batch {
			if err == nil {
				err = w.fill.Set(p.room, p.key, p.value)
			}
		}
	}
	return err
}
