package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// brokenTable is a table whose scans fail once it is broken.
type brokenTable struct {
	engine.Table
	broken bool
	begun  func()
	fail   chan struct{} // closed when they may fail
}

func (b *brokenTable) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (bool, error) {
	if !b.broken {
		return b.Table.Scan(room, above, below, limit, yield)
	}
	b.begun()
	<-b.fail
	return false, errors.New("it cannot be read")
}

// A machine that could not read its table is in the middle of a record. So whoever waits for the partition's lock must find it stopped.
func TestHaltedBeforeOthers(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 1}
	whole := engine.New(layout, 0)
	claim := engine.Rules()
	claim.Node = "n"
	const epoch, hour = 1, 3_600_000
	for _, e := range []engine.Entry{
		{Seq: epoch, Kind: engine.KindClaim, Claim: claim},
		{Seq: 2, Kind: engine.KindPut, Verb: "put", Job: "late", Body: []byte(`{"schedule":"@in 1h"}`)},
	} {
		if _, err := whole.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	var saved memtable.Table
	build := saved.Begin()
	if err := errors.Join(whole.Export(build, 2), build.Commit()); err != nil {
		t.Fatal(err)
	}
	reads := make(chan struct{})
	table := &brokenTable{Table: saved.View(), begun: sync.OnceFunc(func() { close(reads) }), fail: make(chan struct{})}
	m, err := engine.OpenCold(layout, 0, table)
	if err != nil {
		t.Fatal(err)
	}
	table.broken = true
	n := &Node{log: slog.New(slog.DiscardHandler)}
	p := &partition{machine: m}
	p.owner.Epoch = epoch
	p.follows.Store(true)
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		n.apply(p, &engine.Entry{Seq: 3, Time: 2 * hour, Kind: engine.KindTick, Ticks: []engine.Tick{{To: 2 * hour, Epoch: epoch, Limit: 10}}})
	}()
	<-reads
	found := make(chan error, 1)
	waits := make(chan struct{})
	go func() {
		close(waits)
		for !p.mu.TryLock() { // so that it is taken as soon as it is free
		}
		defer p.mu.Unlock()
		found <- p.stopped
		if p.ownedEpoch() != 0 {
			t.Error("it is still this node's")
		}
	}()
	<-waits
	close(table.fail)
	if <-found == nil {
		t.Error("the partition seems to go on")
	}
	<-applied
}

// Headers and labels count as well.
func TestOutcomesWithHeadersAreBounded(t *testing.T) {
	n := &Node{log: slog.New(slog.DiscardHandler)}
	n.replies.init()
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}
	p.follows.Store(true)
	const header, commands = 16_000, 6000
	for seq := range uint64(commands) {
		n.replies.open.Add(1)
		n.replies.await(seq+1, func(reply) {})
		e := engine.Entry{Seq: seq + 1, Kind: engine.KindPause, Verb: string(carillon.VerbPause), Job: "j"}
		if seq == 0 {
			e.Kind, e.Verb, e.Body = engine.KindPut, string(carillon.VerbPut), fmt.Appendf(nil, `{"headers":{"H":"%0*d"}}`, header, 0)
		}
		n.apply(p, &e)
	}
	bytes := 0
	for _, o := range n.replies.queue {
		bytes += len(o.r.job.Spec.Headers["H"])
	}
	if bytes < maxQueuedBytes*9/10 || bytes > maxQueuedBytes+header {
		t.Errorf("outcomes with %d bytes of headers wait", bytes)
	}
	if n.replies.admits() == nil {
		t.Error("one more is taken")
	}
}

// A partition's part of a page of jobs with many headers ends where the page is full.
func TestPageOfJobsWithHeaders(t *testing.T) {
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}
	n := &Node{log: slog.New(slog.DiscardHandler), partitions: []*partition{p}}
	n.replies.init()
	p.follows.Store(true)
	const header, jobs = 16_000, 200
	for seq := range uint64(jobs) {
		n.apply(p, &engine.Entry{
			Seq: seq + 1, Kind: engine.KindPut, Verb: string(carillon.VerbPut), Job: fmt.Sprintf("job-%03d", seq),
			Body: fmt.Appendf(nil, `{"headers":{"H":"%0*d"}}`, header, 0),
		})
	}
	const most = carillon.MaxPageBytes/header + 1
	found, last, more := n.page(p, &carillon.ListRequest{}, "", jobs)
	if len(found) > most || len(found) < most*9/10 || !more || last != found[len(found)-1].ID {
		t.Errorf("%d jobs up to %s, %v; want %d", len(found), last, more, most)
	}
}

// The outcomes of commands have the payloads of their jobs, and those that wait to be passed on are bounded: beyond the bound commands are
// carried out without them, and further ones are refused, until there is room again.
func TestOutcomesAreBounded(t *testing.T) {
	n := &Node{log: slog.New(slog.DiscardHandler)}
	n.replies.init()
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}
	p.follows.Store(true)
	const payload, commands = 512 << 10, 300
	var seq uint64
	var told []reply
	apply := func(kind engine.Kind, verb carillon.Verb, body string) {
		seq++
		n.replies.open.Add(1)
		n.replies.await(seq, func(r reply) { told = append(told, r) })
		n.apply(p, &engine.Entry{Seq: seq, Kind: kind, Verb: string(verb), Job: "j", Body: []byte(body)})
	}
	apply(engine.KindPut, carillon.VerbPut, fmt.Sprintf(`{"schedule":"@daily","payload":"%0*d"}`, payload-2, 0))
	for range commands / 2 {
		apply(engine.KindPause, carillon.VerbPause, "")
		apply(engine.KindResume, carillon.VerbResume, "")
	}
	bytes := 0
	for _, o := range n.replies.queue {
		bytes += len(o.r.job.Spec.Payload)
	}
	if bytes < maxQueuedBytes-2*payload || bytes > maxQueuedBytes+payload {
		t.Errorf("outcomes with %d bytes of payloads wait", bytes)
	}
	if err := n.replies.admits(); !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
		t.Errorf("one more: %v", err)
	}
	if s := p.machine.Stats(); s.Jobs != 1 || s.Paused != 0 || s.Position != 1+commands {
		t.Errorf("not all commands were carried out: %+v", s)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n.replies.run(over) // passes on what it has, and ends
	whole := 0
	for _, r := range told {
		if len(r.job.Spec.Payload) == payload {
			whole++
		} else if !r.noRoom || !r.changed || r.err != nil {
			t.Fatalf("%+v", r)
		}
	}
	if len(told) != 1+commands || whole*payload != bytes {
		t.Errorf("%d outcomes were passed on, %d of them with the job", len(told), whole)
	}
	if err := n.replies.admits(); err != nil {
		t.Errorf("once all are passed on: %v", err)
	}
}
