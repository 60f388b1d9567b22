package engine

// prefetch reads what is about to be used of many jobs, so that it is in the cache by then. Jobs that are due at the same time lie
// anywhere in memory, and each costs several cache misses one after the other, because where a job's texts are is known only when
// the job has been read. If many jobs are read together, a core waits for some dozen misses at a time, which take little longer
// than one.
type prefetch struct {
	slots []uint32
	sum   uint32 // a meaningless sum of what was read: the compiler drops reads that nothing depends on
}

const (
	fetchAhead = 32  // jobs at a time
	fetchText  = 256 // bytes of a job's texts
	cacheLine  = 64  // bytes
)

func (f *prefetch) jobs(t *jobTable, slots []uint32) {
	sum := f.sum
	for _, slot := range slots {
		sum += uint32(t.at(slot).text)
	}
	for _, slot := range slots {
		j := t.at(slot)
		sum += t.texts.fetch(j.text)
		if j.extra != 0 {
			r := &t.extras[j.extra]
			sum += uint32(r.end) + uint32(r.skipTo)
		}
	}
	f.sum = sum
}

// turns reads the jobs of the next n turns.
func (f *prefetch) turns(t *jobTable, ready *readyQueue, n int) {
	f.slots = f.slots[:0]
	ready.peek(n, func(next turn) {
		if next.kind != turnRejected {
			f.slots = append(f.slots, next.slot)
		}
	})
	f.jobs(t, f.slots)
}

func (t *texts) fetch(ref textRef) (sum uint32) {
	if ref&largeRef != 0 || ref == 0 {
		return 0
	}
	b := t.at(ref)
	for i := 0; i < min(len(b), fetchText); i += cacheLine {
		sum += uint32(b[i])
	}
	return sum
}
