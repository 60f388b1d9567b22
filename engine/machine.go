package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/wheel"
)

// Logic is the version of the machine's rules. It grows whenever the same log could give other outputs
// than before; a log is never continued under other rules in the middle (see Claim).
const Logic = 1

// These are part of the rules, too.
const (
	maxLead      = 50      // ms that a tick may run ahead of its record's own timestamp
	misfireAfter = 1000    // ms without a tick after which a due fire counts as missed
	maxLimit     = 1 << 16 // outputs of one tick
	moveStep     = 32      // timers that are taken off a wheel between two looks at how many bytes are ready of its priority
	countSteps   = 512     // schedule steps of one turn that counts missed fires
	countTurns   = 64      // such turns that one tick takes in any case; it takes more once nothing else is ready
	maxRejected  = 256     // rejections that wait one by one; further ones collapse by code
	maxForced    = 1 << 16 // forced fires that wait; while there are so many, no more are taken

	maxForcedBytes = 64 << 20 // of the payloads of the forced fires that wait, and of their jobs; a fire that would make them more is not taken

	markEvery  = 100 // effective ticks between two marks at most
	markWithin = 500 // ms, the same: a replica that differs is found within a second, where something is due as often
)

// countingShare is how many times Bounds.Ready jobs of a priority may be counting. Beyond that, and beyond Bounds.ReadyBytes of them, no more
// timers are taken off its wheel, for these jobs cannot leave memory either.
const countingShare = 4

// Bounds limit a tick's work beyond its outputs, and the memory of what is ready. All but Sweep are part
// of the rules: all readers of a log must have the same, so changing them takes another Logic.
type Bounds struct {
	Moves      int // timers that one tick takes off the wheels
	Ready      int // while so many jobs of a priority are ready, no more are taken off its wheel, however many are due
	ReadyBytes int // the same while the specs of these jobs have so many bytes
	Sweep      int // completed jobs that one tick frees in any case; no output depends on it
}

// DefaultBounds are the bounds of a new machine. So many moves take a few ms, so that the first
// outputs of a burst do not wait for its last timers. Ready is eight times as many; what is due beyond that
// stays on the wheel, where a backlog of millions costs least. Jobs that are ready cannot leave memory, so of large ones
// fewer become ready: as many as ReadyBytes and one step of moves (moveStep).
var DefaultBounds = Bounds{Moves: 1 << 12, Ready: 1 << 15, ReadyBytes: 64 << 20, Sweep: 1 << 8}

// ErrRules says that the log goes on under rules that this binary does not have: the one fact in a log that stops a machine.
// Errors wrap it with the versions that can go on.
var ErrRules = errors.New("engine: the log goes on under other rules")

// ErrDiverged says that this replica's state differs from its owner's. It must not go on.
var ErrDiverged = errors.New("engine: this replica's state differs from the owner's")

// Machine is one partition: its jobs, its wheels, what is due, and the outputs that it made. It is a pure
// function of the records applied to it. It is not safe for concurrent use.
type Machine struct {
	layout    Layout
	partition int
	listen    Listener
	bounds    Bounds

	// The state: how far it is, and what it counts.
	position uint64 // sequence of the last record applied
	now      int64  // greatest record timestamp so far, ms: the time for commands
	to       int64  // the time that ticks have reached, ms: the time for firing
	epoch    uint64 // sequence of the claim in force
	claim    Claim
	ticks    uint64 // effective ticks so far
	digest   uint64 // changes with every decision; equal on equal replicas
	marks    [4]Mark
	created  uint64 // jobs created so far
	armed    uint64 // fires armed so far
	finished uint64 // jobs completed so far
	diskLow  bool   // the owner's disk has no room for new jobs
	expired  watermark
	counts   [statuses]int // jobs by status, in memory or not, completed ones until they are freed; of statusFree it means nothing

	// The state: jobs, and what waits.
	jobs           jobTable
	wheels         [priorities]*wheel.Wheel // by rank
	ready          readyQueue
	counting       readyQueue             // turns of jobs some of whose missed fires have been counted, and others not
	readyOf        tally                  // the turns in ready that are of jobs
	countingOf     tally                  // those in counting
	forced         map[uint64]*forcedFire // forced fires that wait, by the sequence of the command
	largestBody    int                    // of the fires that were asked for since the process started; no output depends on it
	forcedBytes    int                    // of the bodies in forced
	forcedSpecs    int                    // about how many bytes the specs have of the jobs that forced fires are of, each counted once
	forcedBy       map[uint32][]uint64    // the keys of forced, by the slot of the job
	rejected       map[origin]*rejection  // rejections whose event waits, by the first command that was refused
	collapse       map[rejectionKey]origin
	gaps           []gap
	recovery       recovery              // the policy for missed fires after a restore
	tombstones     map[string]*tombstone // of deleted jobs, by id
	tombstoneQueue []*tombstone          // in the order of deletion; some are gone from the map
	tombstoned     uint64                // tombstones made so far
	completed      fifo                  // completed jobs that are in memory, oldest first
	outbox         outbox

	// What is in memory and what is on disk.
	residence residence
	base      base        // the checkpoint that changes are counted from
	changes   *generation // since base; while a checkpoint is being taken, since it began
	saving    *Checkpoint // the checkpoint that is being taken, if any

	// Of the tick that is being applied.
	left   int   // outputs that it may still make
	move   int   // timers that it may still take off the wheels
	logged int64 // its record's time, ms: what comes due after it, within the lead, is not late

	// Not part of the state; most of it is memory that is used again.
	onDue        func(slot uint32, deadline int64) // adds a timer's job to soon
	soon         []uint32                          // jobs that are off the wheel and not yet ready
	prefetch     prefetch
	text         []byte    // of the next output
	scratch      []byte    // a row
	spec         []byte    // of the put that is being decided
	outcomes     []Outcome // of the last import
	viewed       viewed
	refused      uint64 // commands refused since Listen was called
	cameDue      int64  // since when something has been due by the records after the last tick, or longer (DueSince), ms
	ignoredMarks uint64 // see IgnoreMarks
}

// Listener is told what the machine does. Any field may be nil. A listener must not call the machine.
type Listener struct {
	Command func(verb string, code carillon.Code) // a command was decided; code is "" if it was applied
	Made    func(o *Output)                       // a trigger or an event was made
	Skipped func(reason string, n uint64)         // n fires were skipped
	Garbage func(reason string)                   // a record changed nothing
}

// New returns the machine of one partition before its first record.
func New(layout Layout, partition int) *Machine {
	m := &Machine{
		layout: layout, partition: partition, bounds: DefaultBounds,
		ready:      newReadyQueue(),
		counting:   newReadyQueue(),
		forced:     make(map[uint64]*forcedFire),
		forcedBy:   make(map[uint32][]uint64),
		rejected:   make(map[origin]*rejection),
		collapse:   make(map[rejectionKey]origin),
		tombstones: make(map[string]*tombstone),
		changes:    newGeneration(1),
	}
	for i := range m.wheels {
		m.wheels[i] = wheel.New(0)
	}
	m.jobs.init()
	m.residence.init()
	m.onDue = m.addDue
	return m
}

// Listen sets the listener from now on, and counts refused commands (Stats.Rejected) anew: those of a replay do not count.
func (m *Machine) Listen(l Listener) { m.listen, m.refused = l, 0 }

// SetBounds replaces DefaultBounds. It must come before the first record, or right after a restore.
func (m *Machine) SetBounds(b Bounds) { m.bounds = b }

// Result is what one record did.
type Result struct {
	Err     *carillon.Error // of a command that was refused; nothing changed
	Changed bool            // of a command: it had an effect
	Epoch   uint64          // of a claim that was taken
	Jobs    []Outcome       // of an import, by the job's place in it; valid until the next Apply
}

// Apply carries out one record of the log. Records must come in order of their sequences; one at or below
// the machine's position changes nothing.
//
// An error stops the partition for good. If it wraps ErrRules or ErrDiverged, the machine is as it was before the record. Any other
// error came from reading the table, or is ErrCheckpoint for a row in it. Then the machine must be thrown away; it returns the same
// error from then on.
func (m *Machine) Apply(e *Entry) (Result, error) {
	if e.Seq <= m.position || m.residence.err != nil {
		return Result{}, m.residence.err
	}
	if e.Kind != KindClaim && m.claim.newer(Rules()) { // so the state came from a newer version: a newer claim would have stopped this machine
		return Result{}, m.newerRules(m.claim, m.epoch)
	}
	m.evictTransient()
	var r Result
	var err error
	now := max(m.now, e.Time)
	var since int64 // of what has been due before a record that is no tick
	var waits bool
	if e.Kind != KindTick {
		since, waits = m.DueSince()
	}
	switch e.Kind {
	case KindTick:
		for i := range e.Ticks {
			if e.Ticks[i].Partition == m.partition {
				err = m.tick(e, &e.Ticks[i])
				break
			}
		}
	case KindClaim:
		r.Epoch, err = m.applyClaim(e)
	case KindDisk:
		m.applyDisk(e)
	case KindGarbage:
		m.garbage("malformed")
	case KindImport:
		m.now = now
		r.Jobs = m.applyImport(e)
	default:
		m.now = now
		m.expire(now)
		r = m.command(e)
	}
	if err = cmp.Or(err, m.residence.err); err != nil {
		return r, err
	}
	if e.Kind != KindTick {
		m.noteDue(since, waits, now)
	}
	m.now = now
	m.position = e.Seq
	return r, nil
}

func (m *Machine) garbage(reason string) {
	if m.listen.Garbage != nil {
		m.listen.Garbage(reason)
	}
}

// command decides a client's command. A refusal changes nothing, except that an event is queued.
func (m *Machine) command(e *Entry) Result {
	changed, refusal := m.decide(e)
	if refusal != nil {
		m.reject(e, refusal)
	} else if changed {
		m.mix(uint64(e.Kind), e.Seq, xxhash.Sum64String(e.Job))
	}
	if m.listen.Command != nil {
		verb, code := e.Verb, carillon.Code("")
		if e.Kind == KindUnknown {
			verb = "unknown"
		}
		if refusal != nil {
			code = refusal.Code
		}
		m.listen.Command(verb, code)
	}
	return Result{Err: refusal, Changed: changed}
}

func (m *Machine) decide(e *Entry) (changed bool, refusal *carillon.Error) {
	if err := carillon.CheckJobID(e.Job); err != nil {
		return false, asError(err)
	}
	if e.Kind == KindUnknown {
		return false, &carillon.Error{Code: carillon.CodeInvalidField, Field: "verb", Message: fmt.Sprintf("%q is no command: put, delete, pause, resume, fire", cut(e.Verb))}
	}
	if p := PartitionOf(e.Job, m.layout.Partitions); p != m.partition {
		return false, &carillon.Error{Code: carillon.CodeInvalidJobID, Field: "id", Message: fmt.Sprintf("job belongs to partition %d, not %d", p, m.partition)}
	}
	if len(e.Request) > carillon.MaxJobIDLength {
		return false, &carillon.Error{Code: carillon.CodeInvalidField, Field: carillon.HeaderRequest, Message: fmt.Sprintf("has %d bytes, at most %d", len(e.Request), carillon.MaxJobIDLength)}
	}
	switch e.Kind {
	case KindPut:
		return m.put(e)
	case KindDelete:
		return m.delete(e)
	case KindPause:
		return m.pause(e)
	case KindResume:
		return m.resume(e)
	default:
		return m.fire(e)
	}
}

// find is lookUp for a command: a job whose retention is over is no longer there, and its memory is freed.
func (m *Machine) find(id string) (uint32, *job) {
	slot, j := m.lookUp(id)
	if j == nil || m.free(slot, j) {
		return 0, nil
	}
	return slot, j
}

// setStatus gives a job another status, and counts it there. A job that is new, or about to be removed, has statusFree.
func (m *Machine) setStatus(j *job, s status) {
	m.counts[j.status]--
	j.status = s
	m.counts[s]++
}

// mix folds a decision into the digest, by which replicas are compared.
func (m *Machine) mix(values ...uint64) {
	for _, v := range values {
		hi, lo := bits.Mul64(m.digest^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
		m.digest = hi ^ lo + v
	}
}

func asError(err error) *carillon.Error {
	var e *carillon.Error
	if errors.As(err, &e) {
		return e
	}
	return &carillon.Error{Code: carillon.CodeInternal, Message: err.Error()}
}

// cut bounds how much of a command's own text an error message repeats: the text may be hostile.
func cut(s string) string {
	if len(s) > carillon.MaxJobIDLength {
		s = s[:carillon.MaxJobIDLength]
	}
	return strings.ToValidUTF8(s, "_")
}
