package node

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// serveAPI answers requests on <prefix>.api.> as a NATS micro service.
func (n *Node) serveAPI() (micro.Service, error) {
	service, err := micro.AddService(n.nc, micro.Config{
		Name: "carillon", Version: "1.0.0", Description: "Jobs that must start at a time",
		Metadata: map[string]string{"node": n.o.Name, "partitions": strconv.Itoa(n.layout.Partitions)},
	})
	if err != nil {
		return nil, fmt.Errorf("node: api: %w", err)
	}
	api, tenant := service.AddGroup(n.o.Prefix+".api"), service.AddGroup(n.o.Prefix+".tenant.*")
	serve := func(name, subject string, handle micro.HandlerFunc) {
		if err == nil {
			err = api.AddEndpoint(name, handle, micro.WithEndpointSubject(subject))
		}
		if err == nil && tenants[name] {
			err = tenant.AddEndpoint("tenant-"+name, handle, micro.WithEndpointSubject(subject))
		}
	}
	// A command needs no goroutine: what takes long is its way through the log, and nobody stands waiting.
	for _, verb := range []carillon.Verb{carillon.VerbPut, carillon.VerbDelete, carillon.VerbPause, carillon.VerbResume, carillon.VerbFire} {
		serve(string(verb), string(verb)+".>", func(r micro.Request) { n.handleCommand(r, verb) })
	}
	add := func(name, subject string, do func(*call) error) {
		serve(name, subject, func(r micro.Request) { go n.handle(r, do) })
	}
	for _, verb := range []carillon.Verb{carillon.VerbDelete, carillon.VerbPause, carillon.VerbResume} {
		add(string(verb)+"-selection", string(verb), func(c *call) error { return n.apiSelection(c, verb) })
	}
	add("import", "import", n.apiImport)
	add("snapshot", "snapshot", n.apiSnapshot)
	add("get", "get.>", n.apiGet)
	add("list", "list", n.apiList)
	add("preview", "preview", n.apiPreview)
	add("status", "status", n.apiStatus)
	if n.joined.takes.Load() {
		add("drain", "drain."+n.o.Name, n.apiDrain)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: api: %w", err), service.Stop())
	}
	// Who hears that the node is ready must be heard. Where NATS is away it learns of the endpoints when it is back.
	_ = n.nc.FlushTimeout(replyTimeout)
	return service, nil
}

// call is one request.
type call struct {
	micro.Request
	nc     *nats.Conn
	tenant string // who asks, where the request came as a tenant's (tenant.go)
	job    string // the rest of the subject after the verb
}

// answer publishes the reply. The ways to answer that micro.Request has note the outcome in the request, and
// the service reads that when its handler has returned: a race where the answer comes later.
func (c *call) answer(body []byte) error { return c.publish(&nats.Msg{Data: body}) }

func (c *call) refuse(e *carillon.Error) error {
	return c.publish(&nats.Msg{Data: e.AppendJSON(nil), Header: nats.Header{
		micro.ErrorHeader: []string{string(e.Code)}, micro.ErrorCodeHeader: []string{strconv.Itoa(e.Code.Status())},
	}})
}

func (c *call) publish(m *nats.Msg) error {
	if m.Subject = c.Reply(); m.Subject == "" {
		return nil // nobody waits
	}
	return c.nc.PublishMsg(m)
}

// maxCalls bounds the requests in progress; a further one is told to come back, with nothing done.
const maxCalls = 8192

// begin admits a request; it is nil for one that must not be answered. end is to be called when it is over.
func (n *Node) begin(r micro.Request) (c *call, err error) {
	// The server publishes an answer for anyone, with the engine's rights: not to where only engines may.
	for _, room := range []string{".log.", ".trigger.", ".event.", ".cmd."} {
		if strings.HasPrefix(r.Reply(), n.o.Prefix+room) {
			return nil, nil
		}
	}
	if n.server == nil && !n.pulse.fresh(time.Now()) {
		return nil, nil // who asks again gets an answer from another node
	}
	c = &call{Request: r, nc: n.nc}
	err = c.split(n.o.Prefix)
	if n.calls.Add(1) > maxCalls {
		err = &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d requests are in progress", maxCalls)}
	}
	return c, err
}

// end answers with an error where there is one.
func (n *Node) end(c *call, err error) {
	n.calls.Add(-1)
	if err == nil {
		return
	}
	if err := c.refuse(carillon.AsError(err)); err != nil {
		n.log.Debug("request could not be answered", "error", err)
	}
}

func (n *Node) handle(r micro.Request, do func(*call) error) {
	c, err := n.begin(r)
	if c == nil {
		return
	}
	if err == nil {
		err = do(c)
	}
	n.end(c, err)
}

// answerBytes are more than most answers take beside the payload, so that they need not grow.
const answerBytes = 512

// handleCommand checks a command before it goes into the log, so that a refusal costs nothing there, and
// answers when it has come back.
func (n *Node) handleCommand(r micro.Request, verb carillon.Verb) {
	c, err := n.begin(r)
	if c == nil {
		return
	}
	if err == nil {
		err = n.check(c, verb)
	}
	if err != nil {
		n.end(c, err)
		return
	}
	n.submit(string(verb), c.job, c.Headers().Get(carillon.HeaderRequest), c.Data(), func(r reply) {
		if r.err != nil {
			n.end(c, r.err)
			return
		}
		n.end(c, c.answer(r.job.AppendJSON(make([]byte, 0, answerBytes+len(r.job.Spec.Payload)))))
	})
}

func (n *Node) check(c *call, verb carillon.Verb) error {
	if err := carillon.CheckJobID(c.job); err != nil {
		return err
	}
	if err := c.mayID(c.job); err != nil {
		return err
	}
	switch verb {
	case carillon.VerbPut:
		job, _, err := carillon.ParsePut(c.Data())
		if err != nil {
			return err
		}
		job.ID = c.job
		if err := c.mayPut(&job); err != nil {
			return err
		}
		return n.checkPut(&job)
	case carillon.VerbFire:
		_, _, err := carillon.ParseFire(c.Data())
		return err
	default:
		_, err := carillon.ParseCondition(c.Data())
		return err
	}
}

// checkPut checks what the machine would refuse, too, and whether there is room. A header that workers could not read and a
// bound that is none are refused here alone: the machine has taken them, and its rules are those of the logs that there are.
func (n *Node) checkPut(job *carillon.Job) error {
	for name := range job.Headers {
		if strings.EqualFold(name, "Status") {
			// Client libraries would end the consumer, or pass over the trigger, and nobody would acknowledge it.
			return &carillon.Error{
				Code: carillon.CodeInvalidField, Field: "headers",
				Message: fmt.Sprintf("the name %q is reserved: to a worker a message that has it is the NATS server's own word", name),
			}
		}
	}
	if err := checkBounds(job.Start, job.End); err != nil {
		return err
	}
	if _, err := schedule.Parse(job.Schedule, job.Zone, job.Gap, job.Fold); err != nil {
		return err
	}
	if !n.refuseJobs.Load() {
		return nil
	}
	if _, exists := n.job(job.ID); exists {
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("less than %d MiB of disk are free: no new jobs are taken", n.o.FreeForJobs>>20)}
}

// checkBounds refuses the one instant that the machine takes for none: a start of @every would be no anchor, and the end
// no end.
func checkBounds(start, end time.Time) error {
	var field string
	switch epoch := time.UnixMilli(0); {
	case start.Equal(epoch):
		field = "start"
	case end.Equal(epoch):
		field = "end"
	default:
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidField, Field: field,
		Message: "is 1970-01-01T00:00:00Z, which stands for no bound; expected a later time. For @every any later one of its times is the same start",
	}
}

// maxSelections bounds the selections in progress, each of which has hundreds of commands under way.
const maxSelections = 16

// apiSelection carries a command out on each job of a selection. It is not one transaction: each job is
// a command of its own in the log.
func (n *Node) apiSelection(c *call, verb carillon.Verb) error {
	defer n.selections.Add(-1)
	if n.selections.Add(1) > maxSelections {
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d selections are in progress", maxSelections)}
	}
	s, err := carillon.ParseSelection(c.Data())
	if err != nil {
		return err
	}
	if err := c.within(&s); err != nil {
		return err
	}
	if err := cmp.Or(n.current(n.partitions...), n.readableAll()); err != nil {
		return err
	}
	list := carillon.ListRequest{Selection: s}
	var counts carillon.SelectionReply
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := make(chan struct{}, 256)
	for _, p := range n.partitions {
		for after, more := "", true; more; {
			var page []carillon.JobReply
			page, after, more = p.page(&list, after, carillon.MaxListLimit)
			for _, job := range page {
				slots <- struct{}{}
				work.Go(func() {
					defer func() { <-slots }()
					r := n.command(string(verb), job.ID)
					mu.Lock()
					defer mu.Unlock()
					counts.Matched++
					switch {
					case r.err == nil && r.changed:
						counts.Changed++
					case r.err == nil, r.err.Code == carillon.CodeNotFound:
						counts.Unchanged++
					default:
						counts.Failed++
					}
				})
			}
		}
	}
	work.Wait()
	if err := n.readableAll(); err != nil {
		return err // the selection was not seen whole
	}
	return c.answer(counts.AppendJSON(nil))
}

func (n *Node) apiGet(c *call) error {
	if err := carillon.CheckJobID(c.job); err != nil {
		return err
	}
	if err := c.mayID(c.job); err != nil {
		return err
	}
	if err := n.current(n.partitionOf(c.job)); err != nil {
		return err
	}
	job, ok := n.job(c.job)
	if err := n.readable(c.job); err != nil {
		return err
	}
	if !ok {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "there is no job " + strconv.Quote(c.job)}
	}
	return c.answer(job.AppendJSON(nil))
}

func (n *Node) partitionOf(id string) *partition {
	return n.partitions[engine.PartitionOf(id, len(n.partitions))]
}

func (n *Node) job(id string) (carillon.JobReply, bool) {
	p := n.partitionOf(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Job(id)
}

// readable says whether what is known of a job can be believed.
func (n *Node) readable(id string) error { return n.partitionOf(id).readable() }

// readableAll says the same of the jobs of all partitions.
func (n *Node) readableAll() error {
	for _, p := range n.partitions {
		if err := p.readable(); err != nil {
			return err
		}
	}
	return nil
}

func (p *partition) readable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.machine.Err(); err != nil {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: unreadable(p.number, err).Error()}
	}
	return nil
}

// pageScan is how many jobs are looked at while a partition waits: each may have to be read from disk.
const pageScan = 200

// pageJobs is how many jobs are taken out of a partition at once.
const pageJobs = 100

// page collects up to limit jobs that match after an id, and no more than fill a message.
func (p *partition) page(list *carillon.ListRequest, after string, limit int) (jobs []carillon.JobReply, last string, more bool) {
	size := 0
	for more = true; more && len(jobs) < limit && size < carillon.MaxPageBytes; {
		var part []carillon.JobReply
		p.mu.Lock()
		part, after, more = p.machine.Page(list, after, min(limit-len(jobs), pageJobs), pageScan)
		p.mu.Unlock()
		jobs = append(jobs, part...)
		for i := range part {
			size += len(part[i].Spec.Payload) // less than its JSON: the merged page is full before this one ends
		}
	}
	return jobs, after, more
}

// maxLists bounds the lists that are put together at a time, in a MiB or so for each partition. Others wait for their turn.
const maxLists = 32

// apiList answers with a page in order of ids over all partitions. The cursor is the last id, encoded.
func (n *Node) apiList(c *call) error {
	n.lists <- struct{}{}
	defer func() { <-n.lists }()
	list, err := carillon.ParseList(c.Data())
	if err != nil {
		return err
	}
	if err := c.within(&list.Selection); err != nil {
		return err
	}
	after, err := base64.RawURLEncoding.DecodeString(list.Cursor)
	if err != nil || len(after) > carillon.MaxJobIDLength {
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "cursor", Message: "is none that this service gave"}
	}
	if err := n.current(n.partitions...); err != nil {
		return err
	}
	parts := make([]listing, len(n.partitions))
	for i, p := range n.partitions {
		parts[i] = listing{partition: p, after: string(after), more: true}
	}
	// Ids are spread over the partitions by a hash. What is taken from one and not needed was read for nothing.
	share := list.Limit/len(parts) + 8
	var r carillon.JobsReply
	// A page must fit into one message, whatever the payloads are.
	size, limit := 0, min(int(n.nc.MaxPayload())-1024, carillon.MaxPageBytes)
	for {
		next := &listing{}
		for i := range parts {
			l := &parts[i]
			if len(l.jobs) == 0 && l.more {
				l.jobs, l.after, l.more = l.partition.page(&list, l.after, share)
			}
			if len(l.jobs) > 0 && (len(next.jobs) == 0 || l.jobs[0].ID < next.jobs[0].ID) {
				next = l
			}
		}
		if len(next.jobs) == 0 {
			break
		}
		job := next.jobs[0]
		size += len(job.AppendJSON(nil)) + 1
		if len(r.Jobs) == list.Limit || size > limit && len(r.Jobs) > 0 {
			r.Cursor = base64.RawURLEncoding.EncodeToString([]byte(r.Jobs[len(r.Jobs)-1].ID))
			break
		}
		r.Jobs, next.jobs = append(r.Jobs, job), next.jobs[1:]
	}
	if err := n.readableAll(); err != nil {
		return err // jobs may be missing on the page
	}
	return c.answer(r.AppendJSON(nil))
}

// listing is what a page may take next from a partition.
type listing struct {
	partition *partition
	jobs      []carillon.JobReply
	after     string // the last id that was looked at
	more      bool
}

func (n *Node) apiPreview(c *call) error {
	p, err := carillon.ParsePreview(c.Data())
	if err != nil {
		return err
	}
	if err := checkBounds(p.Start, p.End); err != nil {
		return err
	}
	expr, err := schedule.Parse(p.Schedule, p.Zone, p.Gap, p.Fold)
	if err != nil {
		return err
	}
	now := n.clock.ms()
	after := now
	if !p.After.IsZero() {
		after = p.After.UnixMilli()
	}
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	plan := expr.Bind(now, ms(p.Start), ms(p.End), 0)
	r := carillon.PreviewReply{}
	for range p.Count {
		next, ok := plan.Next(after)
		if !ok {
			break
		}
		r.Next = append(r.Next, time.UnixMilli(next).UTC())
		after = next
	}
	return c.answer(r.AppendJSON(nil))
}

func (n *Node) apiStatus(c *call) error {
	now := n.clock.ms()
	head := n.head.Load()
	s := carillon.StatusReply{
		Node: n.o.Name, Time: time.UnixMilli(now).UTC(), Problems: n.problems(),
		Versions: carillon.Versions{
			Carillon: Version(), Logic: engine.Logic, Tzdata: schedule.TZVersion(), NATS: n.nc.ConnectedServerVersion(), Go: runtime.Version(),
		},
		Lateness: n.meters.latenessSummary(),
	}
	s.Ready = len(s.Problems) == 0
	view := n.view()
	s.Nodes = n.nodes(view)
	for _, p := range n.partitions {
		p.mu.Lock()
		st := p.machine.Stats()
		lag := p.lag(now)
		paused := st.Paused
		stopped := p.stopped
		p.mu.Unlock()
		p.out.Lock()
		stored, foreign := p.chain.Stored(), p.foreign
		p.out.Unlock()
		status := carillon.PartitionStatus{
			Partition: p.number, Owner: st.Owner, Standbys: view.Standbys(p.number), Epoch: st.Epoch,
			Position: st.Position, Lag: head - min(head, n.applied.Load()),
			TickLag: float64(lag) / 1e6, Timers: uint64(st.Timers), Ready: uint64(st.Ready), Outbox: st.Made - st.Acked.Output,
			Outputs: st.Made, Published: max(stored.Output, st.Acked.Output), Foreign: foreign, Checkpoint: p.checkpoint.Load(),
			Jobs: map[carillon.Status]uint64{
				carillon.StatusScheduled: uint64(st.Jobs - st.Completed - paused), carillon.StatusPaused: uint64(paused),
				carillon.StatusCompleted: uint64(st.Completed),
			},
			Skipped: map[string]uint64{}, Rejected: st.Rejected,
		}
		for _, reason := range []string{carillon.ReasonMisfire, carillon.ReasonExpired, carillon.ReasonPaused} {
			if v := n.meters.skipped(p.number, reason).Get(); v > 0 {
				status.Skipped[reason] = v
			}
		}
		if st.To > 0 {
			status.Now = time.UnixMilli(st.To).UTC()
		}
		if at := p.checkpointAt.Load(); at > 0 {
			status.CheckpointAt = time.UnixMilli(now - (n.clock.running() - time.Duration(at)).Milliseconds()).UTC()
		}
		if stopped != nil {
			status.Stopped = stopped.Error()
		}
		s.Partitions = append(s.Partitions, status)
	}
	return c.answer(s.AppendJSON(nil))
}
