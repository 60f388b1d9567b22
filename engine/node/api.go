package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/embedded"
)

// requests are those in progress.
type requests struct {
	calls, bytes atomic.Int64 // all of them, and of their bodies
	congestion   congestion   // what bounds them for commands
	imports      atomic.Int64
	selections   atomic.Int64  // those that change a selection
	lists        chan struct{} // holds one for each list that is put together
	statuses     chan struct{} // the same of statuses
}

// serveAPI answers requests on <prefix>.api.> as a NATS micro service.
func (n *Node) serveAPI() (micro.Service, error) {
	service, err := micro.AddService(n.requestConn, micro.Config{
		Name: "carillon", Version: "1.0.0", Description: "Jobs that must start at a time",
		Metadata: map[string]string{"node": n.o.Name, "partitions": strconv.Itoa(n.layout.Partitions)},
	})
	if err != nil {
		return nil, fmt.Errorf("node: api: %w", err)
	}
	ours := n.nodeSubject(n.o.Name)
	endpoint := func(group, name, subject string, handle micro.HandlerFunc) {
		if err == nil {
			err = service.AddGroup(group).AddEndpoint(name, handle, micro.WithEndpointSubject(subject))
		}
	}
	serve := func(name, subject string, handle micro.HandlerFunc) {
		endpoint(n.o.Prefix+".api", name, subject, handle)
		if tenants[name] {
			endpoint(n.o.Prefix+".tenant.*", "tenant-"+name, subject, handle)
		}
		if n.server == nil && passed[name] { // from other nodes
			endpoint(ours+".api", "node-"+name, subject, handle)
			endpoint(ours+".tenant.*", "node-tenant-"+name, subject, handle)
		}
	}
	// A command needs no goroutine of its own: its way through the log takes long, but no goroutine waits for that.
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
	if n.joined.takesPart.Load() {
		add("drain", "drain."+n.o.Name, n.apiDrain)
		for subject, do := range map[string]func(*call) error{
			"give.*": n.apiGive, "page": n.apiPage, "select.*": n.apiSelect, "pack.*": n.apiPack, "partitions": n.apiPartitions,
		} {
			name, _, _ := strings.Cut(subject, ".")
			endpoint(ours, "node-"+name, subject, func(r micro.Request) { go n.handleNode(r, do) })
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: api: %w", err), service.Stop())
	}
	// The server must know of the endpoints before anybody hears that the node is ready. If NATS is away, it learns of them when it is back.
	_ = n.requestConn.FlushTimeout(replyTimeout)
	return service, nil
}

// passed are the endpoints whose requests a node passes on to another one that follows the job's partition.
var passed = map[string]bool{"put": true, "delete": true, "pause": true, "resume": true, "fire": true, "get": true}

// call is one request.
type call struct {
	micro.Request
	node   *Node
	passed bool   // another node passed it on
	tenant string // who asks; "" unless the request came on a tenant's subject (tenant.go)
	job    string // the rest of the subject after the verb
}

// answer publishes the reply. Why not by micro.Request's own methods: they note the outcome in the request, and the service reads that
// when its handler has returned, which would be a race with an answer that comes later.
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
	return c.node.send(m)
}

// send publishes an answer; while few requests of any kind are in progress, at once.
func (n *Node) send(m *nats.Msg) error {
	if n.wire != nil && n.requests.calls.Load() <= fewInProgress {
		return n.wire.Publish(n.nc, m)
	}
	return n.nc.PublishMsg(m)
}

// Bounds of the requests in progress; a further one is refused, with nothing done. A tick waits in the log behind all of their bytes.
const (
	maxCalls     = 8192
	maxCallBytes = 16 << 20 // one request alone may be larger
)

// begin admits a request, or says why not. c is nil for a request that must not be answered; else the caller calls end when it is over.
func (n *Node) begin(r micro.Request) (c *call, err error) {
	if n.guarded(r.Reply()) {
		return nil, nil
	}
	if n.server == nil && !n.pulse.fresh(time.Now()) {
		return nil, nil // it may be old; a client that still wants it asks again, and another node answers
	}
	c = &call{Request: r, node: n}
	err = c.split(n.o.Prefix)
	size := int64(len(r.Data()))
	calls, bytes := n.requests.calls.Add(1), n.requests.bytes.Add(size)
	switch {
	case calls > maxCalls:
		err = &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d requests are in progress", maxCalls)}
	case bytes > max(maxCallBytes, size):
		err = &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d MiB of requests are in progress", maxCallBytes>>20)}
	}
	return c, err
}

// guarded tells whether an answer must not go to a reply subject. Answers are published with the engine's rights, and a client chooses
// the subject: it must not be one on which only engines may publish, nor one of this service or of NATS's own.
func (n *Node) guarded(reply string) bool {
	if strings.HasPrefix(reply, "$") {
		return true
	}
	rest, ours := strings.CutPrefix(reply, n.o.Prefix+".")
	room, _, _ := strings.Cut(rest, ".")
	return ours && slices.Contains(embedded.Rooms[:], room)
}

// quietLooks is for how many looks, a millisecond apart, no command may be in progress before all that were sent count as taken.
const quietLooks = 10

// finishCommands takes no more requests, and waits until the commands that were taken have come back through the log, which must still be
// read until then, or until nobody waits for them any more.
func (n *Node) finishCommands(ctx context.Context) {
	api := n.api.Load()
	if api == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	_ = (*api).Stop() // fails only on a connection that is gone, and then no requests come
	// After this the server passes on no more, and what it has passed on is in the library, which calls handlers one after the other.
	_ = n.requestConn.FlushWithContext(ctx)
	for quiet := 0; quiet < quietLooks; {
		if quiet++; n.replies.expected() {
			quiet = 0
		}
		if !pause(ctx, time.Millisecond) {
			return
		}
	}
}

// lastAnswers waits, for a moment at most, until those who asked before the API was stopped have their answers.
func (n *Node) lastAnswers() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	for n.requests.calls.Load() > 0 && pause(ctx, time.Millisecond) {
		continue
	}
}

// end answers with an error where there is one.
func (n *Node) end(c *call, err error) {
	n.requests.calls.Add(-1)
	n.requests.bytes.Add(-int64(len(c.Data())))
	if err == nil {
		return
	}
	refusal := carillon.AsError(err)
	n.meters.refused(refusal.Code).Inc()
	if err := c.refuse(refusal); err != nil {
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

// answerBytes is more than most answers take beside the payload.
const answerBytes = 512

// answerBuffers are for answers to commands. The client library copies what it is given.
var answerBuffers = sync.Pool{New: func() any { return new([]byte) }}

// answerJob answers with a job.
func (c *call) answerJob(job *carillon.JobReply) error {
	b := answerBuffers.Get().(*[]byte)
	defer answerBuffers.Put(b)
	*b = job.AppendJSON((*b)[:0])
	return c.answer(*b)
}

func (n *Node) apiGet(c *call) error {
	if err := carillon.CheckJobID(c.job); err != nil {
		return err
	}
	if err := c.mayID(c.job); err != nil {
		return err
	}
	p := n.partitionOf(c.job)
	if !p.follows.Load() {
		return n.passOn(c, p)
	}
	if err := n.current(p); err != nil {
		return err
	}
	job, ok := n.job(c.job)
	if err := p.readable(); err != nil {
		return err
	}
	if !ok {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "there is no job " + strconv.Quote(c.job)}
	}
	return c.answer(job.AppendJSON(nil))
}

func (n *Node) job(id string) (carillon.JobReply, bool) {
	p := n.partitionOf(id)
	read := n.readAhead(p, []string{id})
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Job(id, read)
}

// readable returns why what this node knows of the jobs of some partitions must not be used, nil if it may.
func readable(ps []*partition) error {
	for _, p := range ps {
		if err := p.readable(); err != nil {
			return err
		}
	}
	return nil
}

// readable says the same of one partition: it must still be followed, and its table readable.
func (p *partition) readable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.follows.Load() {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("partition %d is not followed here any more", p.number)}
	}
	if err := p.machine.Err(); err != nil {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: unreadable(p.number, err).Error()}
	}
	return nil
}
