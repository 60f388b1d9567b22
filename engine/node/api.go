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
	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/embedded"
)

// The API: how requests are admitted, counted and answered.

// requests counts and bounds the requests in progress.
type requests struct {
	calls, bytes atomic.Int64 // of all kinds: how many, and the bytes of their bodies
	congestion   congestion   // bounds calls where a command comes
	imports      atomic.Int64
	importJobs   *semaphore.Weighted // the jobs of imports that are in the log and not answered
	selections   atomic.Int64        // those that change a selection of jobs
	lists        chan struct{}       // holds a value for each list in progress
	statuses     chan struct{}       // the same for statuses
	queries      chan struct{}       // the same for gets and previews
	lingering    bool                // nats-server may still send requests although none are taken any more (finishCommands)
	crowded      sync.Map            // subscriptions, as keys, of which the library dropped requests that came faster than they were looked at
}

// serveAPI begins to answer requests as a NATS micro service: those on <prefix>.api.>, those of tenants (tenant.go), and, with an external
// NATS, those of other nodes.
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
		if n.server == nil && forwardable[name] { // from other nodes
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
	if n.membership.participating.Load() {
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
	// The server must know of the endpoints before anybody hears that the node is ready. If NATS is away, the server learns of them
	// when it is back.
	_ = n.requestConn.FlushTimeout(replyTimeout)
	return service, nil
}

// forwardable names the endpoints whose requests a node that does not follow the job's partition forwards to one that does.
var forwardable = map[string]bool{"put": true, "delete": true, "pause": true, "resume": true, "fire": true, "get": true}

// call is one request.
type call struct {
	micro.Request
	node      *Node
	forwarded bool   // another node forwarded it
	tenant    string // who asks; "" unless the request came on a tenant's subject (tenant.go)
	job       string // the rest of the subject after the verb
}

// answer publishes the reply. It does not use micro.Request's own methods, because they note the outcome in the request, and the service
// reads that when the handler has returned: a data race if the answer comes later.
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

// send publishes an answer. While few requests of any kind are in progress, it writes the answer to the connection at once (fewInProgress).
func (n *Node) send(m *nats.Msg) error {
	if n.requestWire != nil && n.requests.calls.Load() <= fewInProgress {
		return n.requestWire.Publish(n.requestConn, m)
	}
	return n.requestConn.PublishMsg(m)
}

// Bounds of the requests in progress. A request beyond them is refused, and nothing is done. They are needed because a tick may have to
// wait in the log behind the bytes of all of them.
const (
	maxCalls     = 8192
	maxCallBytes = 16 << 20 // one request alone may be larger
)

// begin admits a request; an error says why it does not. c is nil if the request must not be answered. Otherwise the caller must call end
// when the request is over, also after an error.
func (n *Node) begin(r micro.Request) (c *call, err error) {
	if n.reservedReply(r.Reply()) {
		return nil, nil
	}
	if n.server == nil && !n.freshness.fresh(time.Now()) {
		n.meters.ignoredRequests("old").Inc()
		return nil, nil // the request may be old; a client that still wants an answer asks again, and another node answers
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

// noteConnError takes an error of the connection of requests.
func (n *Node) noteConnError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) && sub != nil {
		n.requests.crowded.Store(sub, true) // the library tells of the first request that it drops, not of those after it
	}
	n.logConnError(err)
}

// dropped counts the requests that the library dropped.
func (r *requests) dropped() (count int) {
	for sub := range r.crowded.Range {
		if of, err := sub.(*nats.Subscription).Dropped(); err == nil { // an error: the subscription has ended, with the run
			count += of
		}
	}
	return count
}

// reservedReply tells whether a reply subject must not get an answer. A client chooses that subject, but answers are published with the
// engine's rights. So it must not be one on which only engines may publish, one of this service's, or one of NATS's own.
func (n *Node) reservedReply(reply string) bool {
	if strings.HasPrefix(reply, "$") {
		return true
	}
	rest, ours := strings.CutPrefix(reply, n.o.Prefix+".")
	token, _, _ := strings.Cut(rest, ".")
	return ours && slices.Contains(embedded.ReservedTokens[:], token)
}

// quietChecks is how many times in a row, a millisecond apart, finishCommands must find no command in progress: the client
// library may not have handed out all of them yet.
const quietChecks = 10

// finishCommands stops taking requests, and waits until the commands that were taken have come back through the log, or until their
// clients have stopped waiting (replyTimeout). Until it returns, the log must still be read.
func (n *Node) finishCommands(ctx context.Context) {
	api := n.api.Load()
	if api == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	// A connection that breaks before the server has heard of the end subscribes once more when it is back, and the library forgets the
	// subscriptions without telling the server.
	connectsSoon(ctx, n.requestConn)
	before := n.requestConn.Stats().Reconnects
	_ = (*api).Stop() // fails only on a connection that is gone, and then no requests come
	// After this the server delivers no more requests. Those that it delivered are in the client library, which calls handlers one after
	// the other.
	err := n.requestConn.FlushWithContext(ctx)
	n.requests.lingering = err != nil || n.requestConn.Stats().Reconnects != before
	for quiet := 0; quiet < quietChecks; {
		if quiet++; n.replies.expected() {
			quiet = 0
		}
		if !sleep(ctx, time.Millisecond) {
			return
		}
	}
}

// lastAnswers waits, for leaveTimeout at most, until all requests that came before the API was stopped are answered.
func (n *Node) lastAnswers() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	for n.requests.calls.Load() > 0 && sleep(ctx, time.Millisecond) {
		continue
	}
}

// endRequests closes the connection of requests if nats-server may still send this node its share of them, which would get no answer
// for as long as the last checkpoints take.
func (n *Node) endRequests() {
	if n.requests.lingering {
		n.disconnect(n.requestConn)
	}
}

// end ends a request. If there is an error, that is its answer.
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

// maxQueries bounds the gets and previews that are being answered at a time: what is read and sent takes twice the job's payload, and while
// thousands of goroutines want the core, ticks wait for it.
const maxQueries = 32

func (n *Node) apiGet(c *call) error {
	if err := carillon.CheckJobID(c.job); err != nil {
		return err
	}
	if err := c.mayID(c.job); err != nil {
		return err
	}
	p := n.partitionOf(c.job)
	if !p.follows.Load() || !c.forwarded && !n.answersHere(p) {
		return n.forward(c, p)
	}
	if err := n.readBarrier(p); err != nil {
		return err
	}
	if err := acquire(n.requests.queries, "gets and previews"); err != nil {
		return err
	}
	defer func() { <-n.requests.queries }()
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

// readable returns an error if what this node knows of the jobs of some partitions must not be used for an answer.
func readable(ps []*partition) error {
	for _, p := range ps {
		if err := p.readable(); err != nil {
			return err
		}
	}
	return nil
}

// readable is readable for one partition: it must still be followed, and reading its table must not have failed.
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
