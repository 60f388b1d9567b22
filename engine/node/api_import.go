package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Imports: the jobs of one request, packed into few records.

// maxImports bounds the imports in progress: each holds all its jobs in memory until it is answered.
const maxImports = 64

// importSlice is how many lines of an import are read, at some 3 µs each, before other goroutines get the core.
const importSlice = 32

// apiImport puts the jobs of a request's lines, packed into records by partition.
func (n *Node) apiImport(c *call) error {
	defer n.requests.imports.Add(-1)
	if n.requests.imports.Add(1) > maxImports {
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d imports are in progress", maxImports)}
	}
	im := newImporting(n.layout.Partitions)
	if err := im.read(c); err != nil {
		return err
	}
	n.sendPacks(im)
	im.under.Wait()
	if im.unknown != nil {
		return im.unknown // the client is to send all of it again, which is harmless
	}
	slices.SortFunc(im.reply.Failed, func(a, b carillon.ImportFail) int { return cmp.Compare(a.Line, b.Line) })
	body := im.reply.AppendJSON(nil)
	if len(body) > leastMaxPayload {
		im.shortenErrors()
		body = im.reply.AppendJSON(body[:0])
	}
	return c.answer(body)
}

// shortErrors is how much of each message is left in an answer that has too many long ones: whatever is escaped, a thousand of them fit.
const shortErrors = 64

// shortenErrors shortens the messages of the lines that failed. Each quotes its line, and escaped the quotes may be longer than the import.
func (im *importing) shortenErrors() {
	for i := range im.reply.Failed {
		if e := *im.reply.Failed[i].Error; len(e.Message) > shortErrors {
			e.Message = strings.ToValidUTF8(e.Message[:shortErrors], "") + "…"
			im.reply.Failed[i].Error = &e
		}
	}
}

// sendPacks sends the records of an import. One may be overtaken by the next (sendRecord, forwardPack), so it is waited for if that has
// an id that it has, too.
func (n *Node) sendPacks(im *importing) {
	for p, packs := range im.packs {
		sent := make(map[string]bool) // ids
		for i, pack := range packs {
			if slices.ContainsFunc(pack.jobs, func(job engine.PackedJob) bool { return sent[job.ID] }) {
				im.under.Wait()
			}
			n.sendPack(im, n.partitions[p], pack)
			if i == len(packs)-1 {
				break // most often it is the only one
			}
			for _, job := range pack.jobs {
				sent[job.ID] = true
			}
		}
	}
}

// sendPack sends a record of an import, once there is room for its jobs. It sends none after one whose outcome is unknown.
func (n *Node) sendPack(im *importing, p *partition, pack *importPack) {
	jobs := int64(len(pack.jobs))
	_ = n.requests.importJobs.Acquire(context.Background(), jobs) // fails only if its context ends
	if im.isUnknown() {
		n.requests.importJobs.Release(jobs)
		return
	}
	im.under.Add(1)
	done := func(r reply) {
		n.requests.importJobs.Release(jobs)
		im.done(pack, r)
		im.under.Done()
	}
	if n.answersHere(p) {
		n.submitPack(p.number, pack.jobs, done)
	} else {
		n.forwardPack(p, pack.jobs, done)
	}
}

// maxImportJobs bounds the jobs that all imports have in the log at a time, as maxCalls bounds other commands: a tick waits behind them.
// Further ones wait for room.
const maxImportJobs = maxCalls

// importing is one import.
type importing struct {
	packs [][]*importPack // by partition
	under sync.WaitGroup

	mu      sync.Mutex
	reply   carillon.ImportReply
	unknown *carillon.Error
}

// packHead is more than the bytes before the jobs in a record.
const packHead = 8

// importPack is one record of an import.
type importPack struct {
	jobs  []engine.PackedJob
	lines []int
	size  int
}

func newImporting(partitions int) *importing {
	return &importing{packs: make([][]*importPack, partitions)}
}

// read reads the body of a request. An invalid line fails alone, and is noted in the reply.
func (im *importing) read(c *call) error {
	body, request := bytes.TrimRight(c.Data(), "\r\n"), c.Headers().Get(carillon.HeaderRequest)
	if err := checkRequest(request, carillon.MaxJobIDLength-8); err != nil { // the line's number is added to it
		return err
	}
	if lines := bytes.Count(body, []byte("\n")); lines >= carillon.MaxImportLines || lines > 0 && len(body) > carillon.MaxImportBytes {
		return &carillon.Error{
			Code:    carillon.CodeLimitExceeded,
			Message: fmt.Sprintf("%d lines of %d bytes; an import has at most %d of %d", lines+1, len(body), carillon.MaxImportLines, carillon.MaxImportBytes),
		}
	}
	number := 0
	for line := range bytes.SplitSeq(body, []byte("\n")) {
		if number++; number%importSlice == 0 {
			runtime.Gosched() // a goroutine that waits for the core may hold up a partition
		}
		if line = bytes.Trim(line, " \t\r"); len(line) == 0 {
			continue
		}
		l, leftOut, err := c.importLine(line)
		switch {
		case err != nil:
			im.failed(number, l.Job.ID, carillon.AsError(err))
		case leftOut:
			im.reply.LeftOut++
		case request == "":
			im.add(&l.ImportJob, "", number)
		default:
			im.add(&l.ImportJob, fmt.Sprintf("%s.%d", request, number), number)
		}
	}
	return nil
}

// importLine reads a line of an import, or says why it is invalid. A completed job without a state is left out.
func (c *call) importLine(line []byte) (l carillon.ImportLine, leftOut bool, err error) {
	if l, err = carillon.ParseImport(line); err != nil {
		return l, false, err
	}
	if err := c.mayPut(&l.Job); err != nil {
		return l, false, err
	}
	if l.Status == carillon.StatusCompleted && l.State == nil {
		return l, true, nil
	}
	if err := c.node.checkPut(&l.Job, l.State == nil); err != nil {
		return l, false, err
	}
	if l.State != nil {
		err = checkState(&l.ImportJob)
	}
	return l, false, err
}

// stateMost bounds the counts of a state, so that none of them can grow beyond the greatest integer that JSON clients read
// exactly (2^53 - 1).
const stateMost = 1 << 52

// checkState refuses a state that lacks the times from which the job's schedule goes on, one whose counts leave no room to grow, and
// one with a time that a record cannot hold: the whole record, with all its jobs, would be garbage.
func checkState(job *carillon.ImportJob) error {
	s := job.State
	switch {
	case job.Job.Schedule == "":
	case s.Accepted.IsZero():
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "accepted", Message: "is not given; a state says when its job was accepted"}
	case s.From.IsZero():
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "from", Message: "is not given; a state says what may be its earliest fire not yet decided"}
	}
	for _, count := range [...]struct {
		field string
		n     uint64
	}{{"version", s.Version}, {"fires", s.Fires}, {"skipped", s.Skipped}} {
		if count.n > stateMost {
			return &carillon.Error{
				Code: carillon.CodeInvalidField, Field: count.field,
				Message: fmt.Sprintf("is %d; in a job's state at most %d", count.n, uint64(stateMost)),
			}
		}
	}
	for _, t := range [...]struct {
		field string
		at    time.Time
	}{{"accepted", s.Accepted}, {"from", s.From}, {"last", s.Last}} {
		if t.at.UnixMilli() > schedule.Horizon {
			return &carillon.Error{
				Code: carillon.CodeInvalidField, Field: t.field,
				Message: fmt.Sprintf("is %s; of a job's state no time is after %s", t.at.Format(carillon.TimeFormat), time.UnixMilli(schedule.Horizon).UTC().Format(carillon.TimeFormat)),
			}
		}
	}
	return nil
}

// add packs a job into the last record of its partition, or into a new one if that is full.
func (im *importing) add(job *carillon.ImportJob, request string, line int) {
	one := engine.Pack(&job.Job, nil, request)
	one.Paused, one.IfAbsent = job.Paused, job.IfAbsent
	if job.State != nil {
		one.State = engine.StateOf(job.State)
	}
	packs := &im.packs[engine.PartitionOf(job.Job.ID, len(im.packs))]
	size := one.Size()
	var last *importPack
	if k := len(*packs); k > 0 {
		last = (*packs)[k-1]
	}
	if last == nil || len(last.jobs) == engine.MaxPackJobs || last.size+size > engine.MaxPackBytes {
		last = &importPack{size: packHead}
		*packs = append(*packs, last)
	}
	last.jobs, last.lines, last.size = append(last.jobs, one), append(last.lines, line), last.size+size
}

func (im *importing) failed(line int, id string, err *carillon.Error) {
	im.reply.Failed = append(im.reply.Failed, carillon.ImportFail{Line: line, ID: id, Error: err})
}

func (im *importing) isUnknown() bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.unknown != nil
}

// done adds the outcome of a record to the reply.
func (im *importing) done(pack *importPack, r reply) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if r.err != nil && r.err.Code == carillon.CodeUnavailable {
		im.unknown = r.err
		return
	}
	for i, line := range pack.lines {
		switch {
		case r.err != nil:
			im.failed(line, pack.jobs[i].ID, r.err)
		case r.jobs[i].Err != nil:
			im.failed(line, pack.jobs[i].ID, r.jobs[i].Err)
		case r.jobs[i].Changed:
			im.reply.Imported++
		default:
			im.reply.Unchanged++
		}
	}
}

// forwardPack has a pack of jobs put by a node that follows the partition. done is called once, with the outcome.
func (n *Node) forwardPack(p *partition, pack []engine.PackedJob, done func(reply)) {
	to := n.followersView().Follower(p.number)
	if to == "" {
		done(reply{err: carillon.AsError(unfollowed(p.number))})
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
		defer cancel()
		answer, err := n.askNode(ctx, to, "pack."+strconv.Itoa(p.number), nil, engine.EncodePack(pack))
		var outcomes []engine.Outcome
		if err == nil {
			err = json.Unmarshal(answer.Data, &outcomes)
			if err == nil && len(outcomes) != len(pack) {
				err = fmt.Errorf("it told of %d of %d jobs", len(outcomes), len(pack))
			}
			if err != nil {
				err = unanswered(to, err)
			}
		}
		done(reply{err: carillon.AsError(err), jobs: outcomes})
	}()
}

// apiPack puts the jobs of a pack for another node.
func (n *Node) apiPack(c *call) error {
	p, err := n.followedHere(c.job)
	if err != nil {
		return err
	}
	pack, err := engine.DecodePack(c.Data())
	if err != nil {
		return &carillon.Error{Code: carillon.CodeInvalidField, Message: err.Error()}
	}
	outcome := make(chan reply, 1)
	n.submitPack(p.number, pack, func(r reply) { outcome <- r })
	r := <-outcome
	if r.err != nil {
		return r.err
	}
	body, err := json.Marshal(r.jobs)
	if err != nil {
		return err
	}
	return c.answer(body)
}
