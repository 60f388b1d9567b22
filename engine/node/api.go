package node

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
)

// The API: which requests there are, and how they are answered.

// serveAPI begins to answer requests as a NATS micro service: those on <prefix>.api.>, those of tenants (api_tenant.go), and, with an external
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

// call is one request.
type call struct {
	micro.Request
	node      *Node
	forwarded bool   // another node forwarded it
	tenant    string // who asks; "" unless the request came on a tenant's subject (api_tenant.go)
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

// split takes a request's subject apart. It is <prefix>.api.<verb>[.<job>] or <prefix>.tenant.<tenant>.<verb>[.<job>]. Between nodes it
// is one of these with <prefix>.node.<name> in place of <prefix>, or <prefix>.node.<name>.<verb>[.<rest>].
func (c *call) split(prefix string) error {
	rest := strings.TrimPrefix(c.Subject(), prefix+".")
	token, rest, _ := strings.Cut(rest, ".")
	if token == "node" { // from another node, which forwards a client's request, or has one of its own
		c.forwarded = true
		_, rest, _ = strings.Cut(rest, ".")
		if !strings.HasPrefix(rest, "api.") && !strings.HasPrefix(rest, "tenant.") {
			_, c.job, _ = strings.Cut(rest, ".")
			return nil
		}
		token, rest, _ = strings.Cut(rest, ".")
	}
	if token == "tenant" {
		c.tenant, rest, _ = strings.Cut(rest, ".")
	}
	_, c.job, _ = strings.Cut(rest, ".")
	if token == "tenant" && !tenantName.MatchString(c.tenant) {
		return &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "tenant",
			Message: fmt.Sprintf("%q is no tenant: 1 to 64 of A-Z a-z 0-9 _ -", c.tenant),
		}
	}
	return nil
}
