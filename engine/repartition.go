package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/wheel"
)

// # Other partitions
//
// A Repartition turns the checkpoints of P partitions into those of another number of partitions, or of some of the jobs only. It maps
// pair by pair: each goes where its job's id belongs. It is given all pairs in order and holds none of them. But it must know
// some things before the first pair goes out, so rows are given to it twice: first to Inspect, then to Route. What has to be solved:
//
//   - A spec's pair does not say which job it belongs to. The rows do, so what they say is kept: 24 bytes a job.
//   - Numbers are unique only within a partition. Numbers of creation, arming, completion and of tombstones are renumbered: n of
//     partition p becomes n·P + p. These are unique among all, and keep the order that they had in each partition. Because it is a
//     formula, the pointer from an id to its row can be rewritten without the row. Before that, numbers of completions
//     and of tombstones are raised, so that all partitions end with the same number: then the newest of each partition stay the newest,
//     and a limit on how many are kept does not leave only those of the busiest partition.
//   - Outputs are numbered anew, since their numbers may have no gaps. Keys that are sequences of the log stay as they are.
//   - The new partitions go on from one time: the earliest that ticks had reached in any partition that had something due by
//     the latest time that ticks had reached anywhere. Partitions with nothing due by then do not count. So whether a fire that came
//     due after the checkpoint is missed depends on what happens next. A job of another partition that was ready already, but is
//     due after that time, waits again.
//   - Completed jobs that are gone are left out, since each partition has its own number up to which they are gone.
//
// Tried and rejected: a table of new numbers without gaps, which takes memory for each job three times over; the
// latest time that ticks had reached, which needs gaps of its own for each job.
type Repartition struct {
	partitions    int
	position      uint64
	only          carillon.Selection
	from          []*oldPartition
	to            []*Machine // their states
	minCompletion []uint64   // the least number of a completion that is kept, by new partition
	time          int64      // that ticks have reached in the new partitions; known from Prepare on
	wheels        [priorities]int64
	b             []byte
}

// oldPartition is a partition that is repartitioned.
type oldPartition struct {
	*Machine
	number int
	raise  struct{ finished, tombstoned uint64 } // what is added to numbers of completions and tombstones

	earliest   int64       // when its first undecided fire is due
	specs      []specRoute // by key, once sorted
	sorted     bool
	next       int               // place in specs
	dropped    []uint64          // rowIDs of what is left out; ascending from Prepare on
	forcedRows map[string]uint64 // ids of the jobs with forced fires, and the rowIDs of these jobs; 0: not found yet
}

// specRoute says where the spec of a row goes.
type specRoute struct { // flat: a specKey in it would cost 8 bytes more
	put   uint64
	row   uint64 // its rowID
	index uint16
	to    uint16
}

func (s *specRoute) key() specKey { return specKey{s.put, s.index} }

const (
	leftOut       = math.MaxUint16 // in place of a partition
	maxPartitions = math.MaxUint16 // partitions
	maxRenumbered = 1 << 62        // numbers stay below, so that rowID can shift them by two bits
)

// NewRepartition begins to make new partitions of old ones. states are those of all partitions of one service. position is where
// the log ends that all of them follow. Only the selected jobs go along. Errors: partitions out of range; numbers too great to be
// multiplied once more.
func NewRepartition(states []*SavedState, partitions int, position uint64, only carillon.Selection) (*Repartition, error) {
	if partitions < 1 || partitions >= maxPartitions {
		return nil, fmt.Errorf("engine: %d partitions; there are 1 to %d", partitions, maxPartitions-1)
	}
	r := &Repartition{partitions: partitions, position: position, only: only}
	for i, s := range states {
		m := s.machine
		if greatest := max(m.created, m.armed, m.finished, m.tombstoned); greatest >= maxRenumbered/uint64(len(states))-1 {
			return nil, fmt.Errorf("engine: partition %d has counted to %d, too far to be numbered anew", i, greatest)
		}
		r.from = append(r.from, &oldPartition{Machine: m, number: i, earliest: none, forcedRows: make(map[string]uint64)})
	}
	r.align()
	for i := range partitions {
		r.to = append(r.to, New(Layout{Prefix: states[0].Prefix, Partitions: partitions}, i))
		r.minCompletion = append(r.minCompletion, math.MaxUint64)
	}
	return r, nil
}

// align raises the numbers of completions and tombstones so that those of all partitions end with the same number.
func (r *Repartition) align() {
	var finished, tombstoned uint64
	for _, s := range r.from {
		finished, tombstoned = max(finished, s.finished), max(tombstoned, s.tombstoned)
	}
	for _, s := range r.from {
		s.raise.finished, s.raise.tombstoned = finished-s.finished, tombstoned-s.tombstoned
	}
}

// Rooms are the rooms to be given to Inspect, in this order, for each partition.
func (r *Repartition) Rooms() []byte {
	rooms := append([]byte{roomForced}, jobRooms[:]...)
	if r.bySpec() {
		rooms = append(rooms, roomSpecs)
	}
	return rooms
}

// bySpec tells whether a job's spec is needed to know whether the job is selected.
func (r *Repartition) bySpec() bool { return r.only.Label != "" || r.only.Owner != "" }

// Inspect looks at a pair. The pairs of one partition must come in order; those of others may come from other goroutines
// at the same time. Inspect keeps none of the bytes. Errors: ErrCheckpoint.
func (r *Repartition) Inspect(from int, room byte, key, value []byte) error {
	s := r.from[from]
	var err error
	switch room {
	case roomForced:
		var f *forcedFire
		if f, err = decodeForced(key, value); err == nil {
			s.forcedRows[f.id] = 0
		}
	case roomSpecs:
		err = r.inspectSpec(s, key, value)
	default:
		err = r.inspectRow(s, room, key, value)
	}
	return malformed(room, key, err)
}

func (r *Repartition) inspectRow(s *oldPartition, room byte, key, value []byte) error {
	if err := checkRow(room, key, value); err != nil {
		return err
	}
	d := decoder{b: value[2:]}
	spec := specKey{d.uvarint(), uint16(d.uvarint())}
	id := string(d.bytes())
	if d.err != nil {
		return d.err
	}
	m := rowID(room, key)
	_, forced := s.forcedRows[id]
	keep := strings.HasPrefix(id, r.only.Prefix) && (room != roomCompleted || value[1]&rowReady != 0 || forced || !s.expired.passedKey(key))
	to := leftOut
	if keep {
		to = PartitionOf(id, r.partitions)
		if room == roomWaiting {
			k := decoder{b: key[1:]}
			s.earliest = min(s.earliest, k.time())
		}
	} else {
		s.dropped = append(s.dropped, m)
	}
	s.specs = append(s.specs, specRoute{put: spec.put, index: spec.index, to: uint16(to), row: m})
	if forced {
		s.forcedRows[id] = m
	}
	return nil
}

// passedKey tells whether the completed job of a key in its room is gone.
func (w watermark) passedKey(key []byte) bool {
	k := decoder{b: key}
	return w.passed(&job{status: statusCompleted, next: k.time(), armed: k.number()})
}

// rowID identifies a row among those of its partition: by the number that ends its key, and its room.
func rowID(room byte, key []byte) uint64 {
	return binary.BigEndian.Uint64(key[len(key)-8:])<<2 | uint64(slices.Index(jobRooms[:], room))
}

// inspectSpec leaves a job out that is not selected by its spec.
func (r *Repartition) inspectSpec(s *oldPartition, key, value []byte) error {
	s.sortSpecs()
	at, err := s.spec(key)
	if err != nil || at == nil || at.to == leftOut {
		return err
	}
	want, err := decodeSpec(value)
	if err != nil {
		return err
	}
	if want.ID = r.only.Prefix; !r.only.Matches(&want) { // inspectRow has checked the prefix
		at.to = leftOut
		s.dropped = append(s.dropped, at.row)
	}
	return nil
}

func (s *oldPartition) sortSpecs() {
	if s.sorted {
		return
	}
	s.sorted = true
	slices.SortFunc(s.specs, func(a, b specRoute) int { return a.key().compare(b.key()) })
}

// spec finds what is known of a spec; nil if no row names it. Keys must ascend from call to call.
func (s *oldPartition) spec(key []byte) (*specRoute, error) {
	k, err := decodeSpecKey(key)
	if err != nil {
		return nil, err
	}
	for s.next < len(s.specs) && s.specs[s.next].key().before(k) {
		s.next++
	}
	if s.next == len(s.specs) || s.specs[s.next].key() != k {
		return nil, nil
	}
	return &s.specs[s.next], nil
}

func (s *oldPartition) isDropped(m uint64) bool {
	_, found := slices.BinarySearch(s.dropped, m)
	return found
}

// Prepare must be called when all pairs have been inspected, before the first Route.
func (r *Repartition) Prepare() {
	latest := int64(0)
	for _, s := range r.from {
		latest = max(latest, s.Machine.to)
		slices.Sort(s.dropped)
		s.sortSpecs()
		s.next = 0
	}
	r.time = latest
	for rank := range r.wheels {
		r.wheels[rank] = latest
	}
	for _, s := range r.from {
		if s.earliest > latest {
			continue
		}
		r.time = min(r.time, s.Machine.to)
		for rank, w := range s.wheels {
			r.wheels[rank] = min(r.wheels[rank], w.Now())
		}
	}
}

// renumbered is what number n of a partition becomes.
func (r *Repartition) renumbered(s *oldPartition, n uint64) uint64 {
	return n*uint64(len(r.from)) + uint64(s.number)
}

// renumberedKey is what the number that ends a row's key becomes: in roomCompleted a number of completion, else of arming or creation.
func (r *Repartition) renumberedKey(s *oldPartition, room byte, n uint64) uint64 {
	if room == roomCompleted {
		n += s.raise.finished
	}
	return r.renumbered(s, n)
}

// renumberedMax is a number above what numbers up to n become in any partition.
func (r *Repartition) renumberedMax(n uint64) uint64 { return (n + 1) * uint64(len(r.from)) }

// Routed is where a pair goes. Key and value are valid until the next call, or as long as what Route was given.
type Routed struct {
	Partition  int
	Key, Value []byte
}

// Route says where a pair goes, or that it is left out (keep is false). The pairs of a room must come in order from each partition;
// those of several partitions may be mixed. What goes from one old partition to one new one is in order, too, and all keys in a new
// partition are unique. Errors: ErrCheckpoint.
func (r *Repartition) Route(from int, room byte, key, value []byte) (to Routed, keep bool, err error) {
	s := r.from[from]
	to = Routed{Key: key, Value: value}
	switch room {
	case roomWaiting, roomIdle, roomCompleted:
		keep, err = r.routeRow(s, room, &to)
	case roomIDs:
		keep, err = r.routeID(s, &to)
	case roomSpecs:
		var at *specRoute
		if at, err = s.spec(key); at != nil {
			to.Partition, keep = int(at.to), at.to != leftOut
		}
	case roomForced:
		var f *forcedFire
		if f, err = decodeForced(key, value); err == nil {
			to.Partition, keep = PartitionOf(f.id, r.partitions), !s.isDropped(s.forcedRows[f.id])
			if s.forcedRows[f.id] == 0 {
				err = fmt.Errorf("there is no job %s", f.id)
			}
		}
	case roomTombstones:
		var g *tombstone
		if g, err = decodeTombstone(key, value); err == nil {
			to.Partition, keep = PartitionOf(g.id, r.partitions), strings.HasPrefix(g.id, r.only.Prefix)
			r.b = appendNumber(r.b[:0], r.renumbered(s, g.number+s.raise.tombstoned))
			to.Key = r.b
		}
	case roomOutputs:
		keep, err = r.routeOutput(s, &to)
	default:
		err = errors.New("unknown room")
	}
	return to, keep, malformed(room, key, err)
}

func (r *Repartition) routeRow(s *oldPartition, room byte, to *Routed) (keep bool, err error) {
	if err := checkRow(room, to.Key, to.Value); err != nil {
		return false, err
	}
	if s.isDropped(rowID(room, to.Key)) {
		return false, nil
	}
	s.scratch = append(append(append(s.scratch[:0], room), to.Key...), to.Value...)
	j, err := decodeRow(s.scratch)
	if err != nil {
		return false, err
	}
	if j.place == inReady && room == roomWaiting && j.next > r.time {
		j.place = onWheel
	}
	j.order, j.armed = r.renumbered(s, j.order), r.renumberedKey(s, room, j.armed)
	r.b = appendRow(r.b[:0], &j.job, &j.fixed, j.extra, j.id, j.request)
	out := row(r.b)
	to.Partition, to.Key, to.Value = PartitionOf(string(j.id), r.partitions), out.key(), out.value()
	r.to[to.Partition].counts[j.status]++
	if room == roomCompleted {
		r.minCompletion[to.Partition] = min(r.minCompletion[to.Partition], j.armed)
	}
	return true, nil
}

func (r *Repartition) routeID(s *oldPartition, to *Routed) (keep bool, err error) {
	pointer := to.Value
	if len(pointer) == 0 || len(pointer) != 1+keySize(pointer[0]) {
		return false, errShort
	}
	if s.isDropped(rowID(pointer[0], pointer[1:])) {
		return false, nil
	}
	n := len(pointer) - 8
	r.b = append(r.b[:0], pointer[:n]...)
	r.b = appendNumber(r.b, r.renumberedKey(s, pointer[0], binary.BigEndian.Uint64(pointer[n:])))
	to.Partition, to.Value = PartitionOf(string(to.Key), r.partitions), r.b
	return true, nil
}

// routeOutput keeps the outputs that are held. An event without a job may go to any partition.
func (r *Repartition) routeOutput(s *oldPartition, to *Routed) (keep bool, err error) {
	o, err := decodeOutput(to.Key, to.Value)
	if err != nil || o.Number <= s.outbox.acked.Output {
		return false, err
	}
	var want carillon.Job
	if o.spec != "" && r.bySpec() {
		if want, err = decodeSpec([]byte(o.spec)); err != nil {
			return false, err
		}
	}
	if want.ID = o.Job; !r.only.Matches(&want) {
		return false, nil
	}
	to.Partition = r.partitionOf(s, o.Job)
	made := &r.to[to.Partition].outbox.made
	*made++
	r.b = appendNumber(r.b[:0], *made)
	to.Key = r.b
	return true, nil
}

// partitionOf is where an output or a rejection goes that is about a job; job may be "".
func (r *Repartition) partitionOf(s *oldPartition, job string) int {
	if job == "" {
		return s.number % r.partitions
	}
	return PartitionOf(job, r.partitions)
}

// States returns the states of the new partitions, and how many jobs these have, once all pairs are routed. The new partitions'
// output streams must be empty.
func (r *Repartition) States() (all [][]byte, jobs int) {
	all = make([][]byte, len(r.to))
	for i, m := range r.to {
		m.position, m.to, m.expired.at = r.position, r.time, math.MaxInt64
		for rank, at := range r.wheels {
			m.wheels[rank] = wheel.New(at)
		}
		for _, s := range r.from {
			r.addState(m, s)
		}
		m.gaps = mergeGaps(m.gaps, r.time)
		m.expired.number = min(m.finished, r.minCompletion[i]-1)
		all[i] = m.appendState(nil)
		for _, n := range m.counts {
			jobs += n
		}
	}
	return all, jobs
}

// addState adds an old partition's state to a new one's.
func (r *Repartition) addState(m *Machine, s *oldPartition) {
	if s.epoch > m.epoch {
		m.epoch, m.claim = s.epoch, s.claim
	}
	m.mix(s.digest)
	m.ticks, m.now = max(m.ticks, s.ticks), max(m.now, s.now)
	m.created, m.armed = max(m.created, r.renumberedMax(s.created)), max(m.armed, r.renumberedMax(s.armed))
	m.finished, m.tombstoned = max(m.finished, r.renumberedMax(s.finished)), max(m.tombstoned, r.renumberedMax(s.tombstoned))
	m.expired.at = min(m.expired.at, s.expired.at) // jobs that are gone already were left out
	m.diskLow = m.diskLow || s.diskLow
	m.gaps = append(m.gaps, s.gaps...)
	m.recovery = cmp.Or(m.recovery, s.recovery)
	for _, o := range slices.SortedFunc(maps.Keys(s.rejected), origin.compare) {
		rejected := s.rejected[o]
		if r.partitionOf(s, rejected.key.job) != m.partition || !r.only.Matches(&carillon.Job{ID: rejected.key.job}) {
			continue
		}
		if first, waits := m.collapse[rejected.key]; waits {
			m.rejected[first].count += rejected.count
			continue
		}
		m.queueRejection(o, rejected)
	}
}

// mergeGaps joins gaps that overlap. It leaves fires after until to the gap that the next tick makes from there on.
func mergeGaps(gaps []gap, until int64) (merged []gap) {
	slices.SortFunc(gaps, func(a, b gap) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	for _, g := range gaps {
		g.to = min(g.to, until+misfireAfter+1)
		switch n := len(merged); {
		case g.from >= until:
		case n > 0 && g.from < merged[n-1].to:
			merged[n-1].to = max(merged[n-1].to, g.to)
		default:
			merged = append(merged, g)
		}
	}
	return merged
}
