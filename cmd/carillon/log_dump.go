package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

func newLogDumpCommand(a *app) *cobra.Command {
	var d dumper
	c := &cobra.Command{
		Use:   "dump",
		Short: "Show the records of the log, decoded",
		Long: `Show the records of the log in order, decoded: commands as clients sent them, and the engines' ticks,
claims, heals, imports and notes of the disk's state. They come from the service's stream, up to its present
end, or with --data from the local copy of an engine that is stopped, whatever the prefix of its service.`,
		Example: `  carillon log dump --job invoice-7
  carillon log dump --partition 3 --from 120000 --limit 50 --json
  carillon log dump --data /var/lib/carillon`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if d.partition < allPartitions || d.partition >= node.MaxPartitions {
				return badPartition(d.partition, node.MaxPartitions)
			}
			err := notZero(c, "limit")
			if err == nil && d.data != "" {
				err = noConnection(c)
			}
			if err != nil {
				return err
			}
			d.app = a
			if d.data != "" {
				err = d.local(c.Context())
			} else {
				err = d.stream(c.Context())
			}
			if errors.Is(err, errLimit) {
				return nil
			}
			return err
		},
	}
	f := c.Flags()
	f.IntVar(&d.partition, "partition", allPartitions, "only records that concern this `partition`")
	f.Var((*nonEmpty)(&d.job), "job", "only commands for this job `id`, and the imports it is in")
	f.Uint64Var(&d.from, "from", 1, "first `sequence`")
	f.Uint64Var(&d.limit, "limit", 0, "stop after this `number` of records shown")
	f.Var((*nonEmpty)(&d.data), "data", "read the data `directory` of a stopped engine")
	f.Lookup("partition").DefValue = "all"
	return c
}

const allPartitions = -1

func badPartition(given, partitions int) error {
	return usagef("--partition is %d; expected 0 to %d", given, partitions-1)
}

type dumper struct {
	app       *app
	partition int
	job       string
	from      uint64
	limit     uint64
	data      string

	layout engine.Layout // for the greatest number of partitions, so that any record can be shown as what it says it is
	shown  uint64
}

// errLimit ends a dump that has shown enough.
var errLimit = errors.New("limit reached")

// local reads the store of a stopped engine.
func (d *dumper) local(ctx context.Context) error {
	given := d.app.connection.prefix
	if err := d.app.connection.resolve(); err != nil {
		return err
	}
	store, err := node.OpenLog(d.data)
	if err != nil {
		return err
	}
	prefix, err := prefixOf(store.Log(), d.from)
	if err == nil && given != "" && prefix != "" && given != prefix {
		err = usagef("--prefix is %s, but %s has the log of %s", given, d.data, prefix)
	}
	if err != nil {
		return errors.Join(err, store.Close())
	}
	d.layout = engine.Layout{Prefix: prefix, Partitions: node.MaxPartitions}
	if d.partition != allPartitions {
		// If the job table cannot say how many there are, any partition may be meant.
		if n, err := node.SavedPartitions(d.data); err == nil && d.partition >= n {
			return errors.Join(badPartition(d.partition, n), store.Close())
		}
	}
	bar := d.app.newOutputProgress("dump", -1, "records", d.app.stdout)
	defer bar.end()
	err = store.Log().Read(d.from, func(rec wal.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		bar.step(1)
		r, err := engine.DecodeRecord(rec.Seq, rec.Data)
		if err != nil {
			return err
		}
		return d.show(&r)
	})
	if closeErr := store.Close(); err == nil {
		err = closeErr
	}
	return err
}

// prefixOf returns the prefix of the service whose log this is, as the first record from a sequence on has it, or "" if there is none.
// The job table may have no checkpoint yet, or be damaged.
func prefixOf(log *wal.Log, from uint64) (prefix string, err error) {
	err = log.Read(from, func(rec wal.Record) error {
		r, err := engine.DecodeRecord(rec.Seq, rec.Data)
		if err != nil {
			return err
		}
		prefix, _, _ = strings.Cut(r.Subject, ".")
		return errLimit
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	return prefix, err
}

// stream reads the service's log stream up to its present end.
func (d *dumper) stream(ctx context.Context) error {
	lost := make(chan struct{}, 1)
	nc, client, err := d.app.connect(ctx, lostConnection(lost)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	d.layout = engine.Layout{Prefix: client.Names().Prefix, Partitions: node.MaxPartitions}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	name := client.Names().LogStream()
	opening, cancel := context.WithTimeout(ctx, d.app.connection.timeout)
	defer cancel()
	stream, err := js.Stream(opening, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "there is no stream " + name}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	info := stream.CachedInfo()
	if n, ok := streams.PartitionsOf(info.Config); ok && d.partition >= n {
		return badPartition(d.partition, n)
	}
	state := info.State
	last := state.LastSeq
	if state.Msgs == 0 || max(d.from, 1) > last {
		return nil
	}
	records := &logReader{nc: nc, lost: lost, stream: stream, at: max(d.from, 1) - 1}
	if err := records.consume(opening); err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	defer func() { records.stop(context.WithoutCancel(ctx)) }()
	bar := d.app.newOutputProgress("dump", int64(last-max(d.from, state.FirstSeq, 1)+1), "records", d.app.stdout)
	defer bar.end()
	for {
		// The last messages may have been removed since; then no more would come.
		next, cancel := context.WithTimeout(ctx, d.app.connection.timeout)
		r, err := records.next(next)
		cancel()
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		if r.Seq > last {
			return nil
		}
		bar.step(1)
		if err := d.show(&r); err != nil || r.Seq == last {
			return err
		}
	}
}

// show writes a record that passes the filters.
func (d *dumper) show(r *engine.Record) error {
	e := d.layout.Decode(r)
	if d.job != "" && e.Job != d.job && !imports(&e, d.job) || d.partition != allPartitions && !concerns(&e, d.partition) {
		return nil
	}
	var err error
	if d.app.json {
		err = d.app.marshal(newRecordLine(r, &e))
	} else {
		healed := ""
		if e.Seq != r.Seq {
			healed = fmt.Sprintf(" (healed: was %d)", e.Seq)
		}
		partition := "_"
		if e.Partition != engine.AllPartitions {
			partition = fmt.Sprint(e.Partition)
		}
		err = d.app.line("%d  %s  %s  %-7s  %s%s", r.Seq, formatTime(time.Unix(0, r.Time)), partition, kindName(&e), details(r, &e), healed)
	}
	if d.shown++; err == nil && d.shown == d.limit {
		err = errLimit
	}
	return err
}

func concerns(e *engine.Entry, partition int) bool {
	return e.Partition == partition || slices.ContainsFunc(e.Ticks, func(t engine.Tick) bool { return t.Partition == partition })
}

func imports(e *engine.Entry, job string) bool {
	return slices.ContainsFunc(e.Pack, func(p engine.PackedJob) bool { return p.ID == job })
}

func kindName(e *engine.Entry) string {
	switch e.Kind {
	case engine.KindTick:
		return "tick"
	case engine.KindClaim:
		return "claim"
	case engine.KindDisk:
		return "disk"
	case engine.KindImport:
		return "import"
	case engine.KindGarbage:
		return "garbage"
	}
	return excerpt([]byte(e.Verb), 32)
}

// details returns on one line what a record says besides its kind.
func details(r *engine.Record, e *engine.Entry) string {
	switch e.Kind {
	case engine.KindTick:
		var parts []string
		for _, t := range e.Ticks {
			s := fmt.Sprintf("p=%d to=%s epoch=%d limit=%d acked=%d@%d", t.Partition, formatTime(time.UnixMilli(t.To)), t.Epoch, t.Limit, t.Acked.Output, t.Acked.Seq)
			if t.Mark.Position > 0 {
				s += fmt.Sprintf(" mark=%x@%d", t.Mark.Digest, t.Mark.Position)
			}
			parts = append(parts, s)
		}
		return strings.Join(parts, "; ")
	case engine.KindClaim:
		return fmt.Sprintf("node=%q logic=%d tzdata=%s", e.Claim.Node, e.Claim.Logic, e.Claim.TZData)
	case engine.KindDisk:
		return fmt.Sprintf("epoch=%d low=%t", e.Disk.Epoch, e.Disk.Low)
	case engine.KindImport:
		var parts []string
		for i := range e.Pack {
			p := &e.Pack[i]
			parts = append(parts, excerpt([]byte(p.ID), carillon.MaxJobIDLength)+"  "+excerpt(packedBody(p), 160))
		}
		return strings.Join(parts, "; ")
	case engine.KindGarbage:
		return excerpt([]byte(r.Subject), 128) + "  " + excerpt(r.Data, 64)
	}
	s := excerpt([]byte(e.Job), carillon.MaxJobIDLength)
	if len(e.Body) > 0 {
		s += "  " + excerpt(e.Body, 160)
	}
	return s
}

// packedBody returns the body of the put that a packed job stands for.
func packedBody(p *engine.PackedJob) []byte {
	job, err := p.Job()
	if err != nil {
		return p.Spec
	}
	return carillon.AppendPut(nil, &job, p.IfVersion)
}

// recordLine is a record as JSON.
type recordLine struct {
	Sequence  uint64        `json:"sequence"`
	Time      string        `json:"time"`
	Subject   string        `json:"subject"`
	Kind      string        `json:"kind"`
	Healed    uint64        `json:"healed_sequence,omitempty"` // the sequence that it had before the stream lost it
	Partition *int          `json:"partition,omitempty"`
	Job       string        `json:"job,omitempty"`
	Request   string        `json:"request,omitempty"`
	Body      string        `json:"body,omitempty"`
	Base64    string        `json:"body_base64,omitempty"` // if the body is not text
	Ticks     []tickLine    `json:"ticks,omitempty"`
	Claim     *engine.Claim `json:"claim,omitempty"`
	DiskLow   *bool         `json:"disk_low,omitempty"`
	Jobs      []packedLine  `json:"jobs,omitempty"` // of an import
}

// packedLine is one job of an import, a put of its own.
type packedLine struct {
	Job      string     `json:"job"`
	Request  string     `json:"request,omitempty"`
	Paused   bool       `json:"paused,omitempty"`
	IfAbsent bool       `json:"if_absent,omitempty"`
	State    *stateLine `json:"state,omitempty"`
	Body     string     `json:"body,omitempty"`
	Base64   string     `json:"body_base64,omitempty"` // if it cannot be decoded
}

// stateLine is the state of a restored job (engine.JobState).
type stateLine struct {
	Version  uint64 `json:"version"`
	Accepted string `json:"accepted"`
	From     string `json:"from"`
	Last     string `json:"last_scheduled,omitempty"`
	Fires    uint64 `json:"fires"`
	Skipped  uint64 `json:"skipped"`
	Missed   string `json:"missed,omitempty"` // the policy in place of the job's own misfire
}

func newPackedLine(p *engine.PackedJob) packedLine {
	line := packedLine{Job: p.ID, Request: p.Request, Paused: p.Paused, IfAbsent: p.IfAbsent}
	if s := p.State; s != nil {
		line.State = &stateLine{
			Version: s.Version, Accepted: formatTime(time.UnixMilli(s.Accepted)), From: formatTime(time.UnixMilli(s.From)), Fires: s.Fires, Skipped: s.Skipped,
			Missed: s.Missed.String(),
		}
		if s.Last > 0 {
			line.State.Last = formatTime(time.UnixMilli(s.Last))
		}
	}
	line.Body, line.Base64 = text(packedBody(p))
	return line
}

// text returns bytes as they are or, if they are not text, as base64.
func text(b []byte) (plain, encoded string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return "", base64.StdEncoding.EncodeToString(b)
}

type tickLine struct {
	Partition    int    `json:"partition"`
	To           string `json:"to"`
	Epoch        uint64 `json:"epoch"`
	Limit        uint64 `json:"limit"`
	AckedOutput  uint64 `json:"acked_output"`
	AckedSeq     uint64 `json:"acked_sequence"`
	MarkPosition uint64 `json:"mark_position,omitempty"`
	MarkDigest   string `json:"mark_digest,omitempty"`
}

func newRecordLine(r *engine.Record, e *engine.Entry) recordLine {
	line := recordLine{
		Sequence: r.Seq, Time: formatTime(time.Unix(0, r.Time)), Subject: r.Subject, Kind: kindName(e), Job: e.Job, Request: e.Request,
	}
	if e.Seq != r.Seq {
		line.Healed = e.Seq
	}
	if e.Partition != engine.AllPartitions {
		line.Partition = &e.Partition
	}
	switch e.Kind {
	case engine.KindTick:
		for _, t := range e.Ticks {
			l := tickLine{
				Partition: t.Partition, To: formatTime(time.UnixMilli(t.To)), Epoch: t.Epoch, Limit: t.Limit,
				AckedOutput: t.Acked.Output, AckedSeq: t.Acked.Seq, MarkPosition: t.Mark.Position,
			}
			if l.MarkPosition > 0 {
				l.MarkDigest = fmt.Sprintf("%x", t.Mark.Digest)
			}
			line.Ticks = append(line.Ticks, l)
		}
		return line
	case engine.KindClaim:
		line.Claim = &e.Claim
		return line
	case engine.KindDisk:
		line.DiskLow = &e.Disk.Low
		return line
	case engine.KindImport:
		for i := range e.Pack {
			line.Jobs = append(line.Jobs, newPackedLine(&e.Pack[i]))
		}
		return line
	}
	body := e.Body
	if e.Kind == engine.KindGarbage {
		body = r.Data
	}
	line.Body, line.Base64 = text(body)
	return line
}
