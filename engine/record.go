package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Field is one header line of a message.
type Field struct{ Name, Value string }

// Record is one message of the log as it was read: the unit that is stored locally and applied.
type Record struct {
	Seq     uint64  // stream sequence
	Time    int64   // the stream's timestamp, unix nanoseconds
	Subject string  // as stored, after the stream's transform
	Header  []Field // sorted by name
	Data    []byte
}

// Get returns the first value of a header, or "".
func (r *Record) Get(name string) string {
	for _, f := range r.Header {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

const recordVersion = 1

// ErrRecord marks bytes that are no record of the log.
var ErrRecord = errors.New("engine: malformed log record")

// AppendRecord encodes a record without its sequence, which is its key in the local log.
// The format is docs/formats/log-record.md.
func AppendRecord(dst []byte, r *Record) []byte {
	dst = append(dst, recordVersion)
	dst = binary.AppendVarint(dst, r.Time)
	dst = appendString(dst, r.Subject)
	dst = binary.AppendUvarint(dst, uint64(len(r.Header)))
	for _, f := range r.Header {
		dst = appendString(dst, f.Name)
		dst = appendString(dst, f.Value)
	}
	return append(dst, r.Data...)
}

// DecodeRecord is the inverse of AppendRecord. The record's Data aliases b. Errors: ErrRecord, ErrVersion.
func DecodeRecord(seq uint64, b []byte) (Record, error) {
	d := decoder{b: b}
	if d.version("record", recordVersion); errors.Is(d.err, ErrVersion) {
		return Record{}, fmt.Errorf("engine: sequence %d: %w", seq, d.err)
	}
	r := Record{Seq: seq, Time: d.varint(), Subject: d.string()}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		r.Header = append(r.Header, Field{d.string(), d.string()})
	}
	if d.err != nil {
		return Record{}, fmt.Errorf("%w: sequence %d: %w", ErrRecord, seq, d.err)
	}
	r.Data = d.b
	return r, nil
}

// Kind is what a record asks of a partition.
type Kind uint8

// The kinds of entries. KindUnknown to KindFire are clients' commands.
const (
	KindGarbage Kind = iota // on the log's own subjects, but nothing that a partition knows
	KindUnknown             // a command with an unknown verb
	KindPut
	KindDelete
	KindPause
	KindResume
	KindFire
	KindTick
	KindClaim
	KindDisk
	KindImport
)

var verbs = map[string]Kind{
	"put": KindPut, "delete": KindDelete, "pause": KindPause, "resume": KindResume, "fire": KindFire,
}

// Entry is a decoded record: what it is, and for whom.
type Entry struct {
	Seq       uint64 // sequence; a record that was put back (heal) keeps the one it had
	Time      int64  // timestamp, unix milliseconds
	Kind      Kind
	Partition int    // the one partition concerned; AllPartitions for a tick of several
	Verb      string // of a command, as written
	Job       string // of a command, as written
	Request   string // the Carillon-Request header
	Body      []byte
	Ticks     []Tick // of a tick, at most one a partition
	Claim     Claim
	Disk      Disk
	Pack      []PackedJob // of an import

	Index  uint32     // of one job of an import: its place there
	packed *PackedJob // of one job of an import: the put, in place of Body
}

// AllPartitions stands for the partitions named inside a tick record.
const AllPartitions = -1

// Layout is what is fixed once the streams are made.
type Layout struct {
	Prefix     string // of subjects, "carillon"
	Partitions int
}

// PartitionOf gives the partition of a job id: FNV-1a (32 bits) of the id modulo p, as nats-server's
// partition() function of subject transforms computes it (TestPartitionOf in engine/streams).
func PartitionOf(job string, p int) int {
	h := fnv.New32a()
	h.Write([]byte(job))
	return int(h.Sum32() % uint32(p))
}

// LogSubject names the subject of an engine's record for one partition, or for AllPartitions.
func (l Layout) LogSubject(partition int, kind string) string {
	token := "_"
	if partition != AllPartitions {
		token = strconv.Itoa(partition)
	}
	return l.Prefix + ".log." + token + "." + kind
}

// Decode says what a record is. It never fails: anything unknown is KindGarbage, which is harmless.
func (l Layout) Decode(r *Record) Entry { return l.decode(r, false) }

// Healed returns the record that r puts back, if r is a heal record.
func (l Layout) Healed(r *Record) (healed Record, ok bool) {
	rest, ok := strings.CutPrefix(r.Subject, l.Prefix+".log.")
	if _, kind, _ := strings.Cut(rest, "."); !ok || kind != "heal" {
		return Record{}, false
	}
	healed, err := DecodeHeal(r.Data)
	return healed, err == nil && healed.Seq <= r.Seq
}

// decode reads a record of the stream, or (healed) one that a heal record puts back. A heal record inside another is garbage.
func (l Layout) decode(r *Record, healed bool) Entry {
	e := Entry{Seq: r.Seq, Time: floorMilli(r.Time), Partition: AllPartitions}
	rest, ok := strings.CutPrefix(r.Subject, l.Prefix+".")
	if !ok {
		return e
	}
	token := strings.Split(rest, ".")
	switch {
	case token[0] == "cmd" && len(token) == 3:
		// The stream did not transform the subject, because it has a literal wildcard. Partition 0 refuses it.
		e.Partition = 0
		l.command(&e, r, token[1], token[2])
	case token[0] == "log" && len(token) == 4:
		if e.Partition, ok = l.partition(token[1]); ok {
			l.command(&e, r, token[2], token[3])
		}
	case token[0] == "log" && len(token) == 3:
		l.record(&e, r, token[1], token[2], healed)
	}
	return e
}

func (l Layout) command(e *Entry, r *Record, verb, job string) {
	e.Kind = verbs[verb]
	if e.Kind == KindGarbage {
		e.Kind = KindUnknown
	}
	e.Verb, e.Job, e.Body = verb, job, r.Data
	e.Request = r.Get("Carillon-Request")
}

func (l Layout) record(e *Entry, r *Record, partition, kind string, healed bool) {
	var ok bool
	if partition != "_" {
		if e.Partition, ok = l.partition(partition); !ok {
			return
		}
	}
	switch kind {
	case "tick":
		if ticks, err := DecodeTicks(r.Data); err == nil {
			e.Kind, e.Ticks = KindTick, ticks
		}
	case "claim":
		if claim, err := DecodeClaim(r.Data); err == nil && e.Partition != AllPartitions {
			e.Kind, e.Claim = KindClaim, claim
		}
	case "disk":
		if disk, err := DecodeDisk(r.Data); err == nil && e.Partition != AllPartitions {
			e.Kind, e.Disk = KindDisk, disk
		}
	case "import":
		if pack, err := DecodePack(r.Data); err == nil && e.Partition != AllPartitions {
			e.Kind, e.Pack = KindImport, pack
		}
	case "heal":
		if before, ok := l.Healed(r); ok && !healed {
			*e = l.decode(&before, true)
		}
	}
}

func (l Layout) partition(token string) (int, bool) {
	p, err := strconv.Atoi(token)
	if err != nil || p < 0 || p >= l.Partitions || strconv.Itoa(p) != token {
		return AllPartitions, false
	}
	return p, true
}

// EncodeHeal wraps a record that the stream lost, so that it can be appended again as it was.
func EncodeHeal(r *Record) []byte {
	return AppendRecord(binary.AppendUvarint(nil, r.Seq), r)
}

// DecodeHeal returns the wrapped record. Errors: ErrRecord, ErrVersion.
func DecodeHeal(b []byte) (Record, error) {
	d := decoder{b: b}
	seq := d.uvarint()
	if d.err != nil {
		return Record{}, fmt.Errorf("%w: heal: %w", ErrRecord, d.err)
	}
	return DecodeRecord(seq, d.b)
}

func floorMilli(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return ms
}
