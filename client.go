package carillon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// DefaultTimeout is how long a client keeps trying a request, unless its context ends earlier.
const DefaultTimeout = 10 * time.Second

// selectionTimeout takes its place for a request that changes a selection of jobs.
const selectionTimeout = 10 * time.Minute

// Client sends commands and queries to a Carillon service over NATS. Any number of goroutines may use it.
//
// When the service refuses a request, the call returns an *Error. Tell refusals apart with errors.Is:
//
//	if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) { … }
//
// Besides the errors that its comment lists, every call that sends a request may return
//
//   - CodeLimitExceeded: the service has no room for the request, and did nothing;
//   - CodeUnavailable: no answer came in time. The outcome is unknown, unless the message says that nothing was sent. If the context
//     ended during the wait or before it, its error (context.Canceled or context.DeadlineExceeded) is wrapped, too;
//   - CodeInternal: a fault of the service;
//   - an error of the connection, wrapped, such as nats.ErrConnectionClosed, or nats.ErrPermissionViolation if the user may not
//     publish the request. A connection keeps only its last error, so when the server refuses many requests at once, some of the
//     calls may return CodeUnavailable instead.
type Client struct {
	nc      *nats.Conn
	names   Names
	timeout time.Duration

	name     string        // random; the request ids of this client's commands begin with it
	commands atomic.Uint64 // how many request ids it has made
}

// ClientOption changes a default of Connect.
type ClientOption func(*Client)

// WithNames replaces DefaultNames. For a service that runs with --prefix, give NamesFor of that prefix.
func WithNames(n Names) ClientOption { return func(c *Client) { c.names = n } }

// WithTimeout replaces DefaultTimeout, unless d is 0. Nine seconds or more are advisable: an engine whose log is nearly full waits
// three seconds for room before it refuses a command, and a client with a shorter timeout does not wait for that refusal. It sends
// the command again, and at last reports the outcome as unknown.
func WithTimeout(d time.Duration) ClientOption {
	return func(c *Client) { c.timeout = cmp.Or(d, c.timeout) }
}

// Connect makes a client on a connection, which the caller closes. Each client has a random name of its own, by which the service
// tells a command that was sent again from a new one. So two copies of a process, such as two virtual machines that were started from
// one snapshot, must not go on with the same client: call Connect again in each.
func Connect(nc *nats.Conn, options ...ClientOption) *Client {
	c := &Client{nc: nc, names: DefaultNames(), timeout: DefaultTimeout, name: rand.Text()[:16]}
	for _, o := range options {
		o(c)
	}
	return c
}

// Names gives the subjects and streams that the client uses.
func (c *Client) Names() Names { return c.names }

// CommandOption changes one command.
type CommandOption func(*commandOptions)

type commandOptions struct {
	ifVersion *uint64
	request   string
	once      bool
	payload   []byte
	form      PayloadForm
	payloaded bool
}

// IfVersion makes a command conditional: the job must be at version n, or, if n is 0, must not exist (a completed job counts as
// existing). Otherwise the command is refused: with CodeNotFound if there is no job, else with CodeVersionConflict.
func IfVersion(n uint64) CommandOption { return func(o *commandOptions) { o.ifVersion = &n } }

// RequestID gives the command an id of up to 128 bytes, in the Carillon-Request header. A put or fire has no effect if its id is that of
// the last command that was applied to the job; a delete, pause or resume does not look at it. Give every command an id of its own. Without
// this option, or with "", each call makes up an id, which protects its own retries.
func RequestID(id string) CommandOption {
	return func(o *commandOptions) { o.request = cmp.Or(id, o.request) }
}

// NoRetry makes a call return CodeUnavailable as soon as the outcome of its command is unknown, instead of sending the command again.
//
// A reason to want that: a first try that the network held up may be applied after the second one was answered. This does no harm
// unless another command for the same job was applied in between: a job that was paused and soon resumed may end up paused.
// Even with NoRetry a command may still be applied after the call has returned. Fire never sends a command again.
func NoRetry() CommandOption { return func(o *commandOptions) { o.once = true } }

// FirePayload makes Fire deliver this payload in place of the job's own, once. With PayloadNone the form is chosen to suit the bytes.
func FirePayload(payload []byte, form PayloadForm) CommandOption {
	return func(o *commandOptions) { o.payload, o.form, o.payloaded = payload, form, true }
}

// newRequest makes a command's request id. The service keeps the id with the job; it stores the part before the last dash only once,
// however many jobs share it.
func (c *Client) newRequest() string {
	return c.name + "-" + strconv.FormatUint(c.commands.Add(1), 36)
}

func (c *Client) optionsOf(options []CommandOption) commandOptions {
	o := commandOptions{request: c.newRequest()}
	for _, set := range options {
		set(&o)
	}
	return o
}

// Put creates or replaces a job. Once that is durable, it returns the job as it then is. The command is sent again while its outcome
// is unknown, unless NoRetry is given.
//
// An existing job is replaced as a whole. If it equals the new one and is not completed, nothing changes, not even its version. Otherwise
// its schedule begins anew: an @in, or an @every without a Start, counts from now on.
//
// Errors: those of Job.Validate, before anything is sent; CodeInvalidSchedule, CodeInvalidZone and CodeInvalidField, for what only
// the service can check; CodeVersionConflict and, with IfVersion, CodeNotFound, and then nothing was done; CodeLimitExceeded.
func (c *Client) Put(ctx context.Context, job Job, options ...CommandOption) (JobReply, error) {
	o := c.optionsOf(options)
	if err := CheckJobID(job.ID); err != nil {
		return JobReply{}, err
	}
	if err := job.Validate(); err != nil {
		return JobReply{}, err
	}
	return c.askJob(ctx, VerbPut, job.ID, AppendPut(nil, &job, o.ifVersion), o.request, !o.once)
}

// Get returns a job.
//
// Errors: CodeInvalidJobID, CodeNotFound.
func (c *Client) Get(ctx context.Context, id string) (JobReply, error) {
	if err := CheckJobID(id); err != nil {
		return JobReply{}, err
	}
	reply, err := c.query(ctx, c.names.API(VerbGet, id), nil)
	if err != nil {
		return JobReply{}, err
	}
	return ParseJobReply(reply)
}

// Delete removes a job, and with it the fires that are pending or waiting. It returns the job as it was, with StatusDeleted;
// LastScheduled is its latest fire.
//
// If the answer is lost, the command is sent again. If the first try had removed the job, the result then has only the id and
// StatusDeleted. If somebody has put a new job under the id in between, that one is removed, too (see NoRetry).
//
// Errors: CodeInvalidJobID, CodeNotFound, CodeVersionConflict.
func (c *Client) Delete(ctx context.Context, id string, options ...CommandOption) (JobReply, error) {
	o := c.optionsOf(options)
	if err := CheckJobID(id); err != nil {
		return JobReply{}, err
	}
	reply, retried, err := c.ask(ctx, request{
		subject: c.names.API(VerbDelete, id), body: AppendCondition(nil, o.ifVersion), id: o.request, retry: !o.once, within: c.timeout,
	})
	err = afterRetry(VerbDelete, retried, err)
	if retried && errors.Is(err, &Error{Code: CodeNotFound}) {
		return JobReply{ID: id, Status: StatusDeleted, Spec: Job{ID: id}}, nil
	}
	if err != nil {
		return JobReply{}, err
	}
	return ParseJobReply(reply)
}

// Pause stops a job's scheduled fires until Resume. Pausing a paused job changes nothing.
//
// Errors: CodeInvalidJobID, CodeNotFound, CodeVersionConflict.
func (c *Client) Pause(ctx context.Context, id string, options ...CommandOption) (JobReply, error) {
	return c.change(ctx, VerbPause, id, options)
}

// Resume lets a paused job fire again; the fires that it missed meanwhile are skipped and counted.
//
// Errors: CodeInvalidJobID, CodeNotFound, CodeVersionConflict.
func (c *Client) Resume(ctx context.Context, id string, options ...CommandOption) (JobReply, error) {
	return c.change(ctx, VerbResume, id, options)
}

func (c *Client) change(ctx context.Context, verb Verb, id string, options []CommandOption) (JobReply, error) {
	o := c.optionsOf(options)
	return c.askJob(ctx, verb, id, AppendCondition(nil, o.ifVersion), o.request, !o.once)
}

// Fire makes one trigger of a job now, outside its schedule (a forced fire); the trigger's id is in the reply. IfVersion has no effect
// on it. When the outcome is unknown, the command is not sent again, because that might make a second trigger.
//
// Errors: CodeInvalidJobID; CodeNotFound; for the payload, CodePayloadTooLarge, CodeInvalidJSON if its form is PayloadJSON and it is
// not JSON, and CodeInvalidField if it does not suit its form otherwise; CodeLimitExceeded, also while as many fires of the job's
// partition wait as it takes.
func (c *Client) Fire(ctx context.Context, id string, options ...CommandOption) (JobReply, error) {
	o := c.optionsOf(options)
	var body []byte
	if o.payloaded {
		job := Job{Payload: o.payload, Form: o.form}
		if err := job.Validate(); err != nil {
			return JobReply{}, err
		}
		body = AppendFire(nil, o.payload, o.form)
	}
	return c.askJob(ctx, VerbFire, id, body, o.request, false)
}

// ListPage returns one page of the jobs that l asks for, ordered by id. To get the next page, put the reply's Cursor into the request;
// on the last page it is empty. Any page may hold fewer jobs than Limit.
//
// Errors: CodeInvalidField, CodeInvalidTopic.
func (c *Client) ListPage(ctx context.Context, l ListRequest) (JobsReply, error) {
	if e := l.check(); e != nil { // json.Marshal would make another selection of what is no UTF-8
		return JobsReply{}, e
	}
	body, err := json.Marshal(l)
	if err != nil {
		return JobsReply{}, err
	}
	reply, err := c.query(ctx, c.names.API(VerbList, ""), body)
	if err != nil {
		return JobsReply{}, err
	}
	return ParseJobsReply(reply)
}

// List returns all jobs that l asks for, ordered by id, and fetches them page by page. The sequence ends at the first error,
// which is one of ListPage's. Jobs that are put or deleted meanwhile may or may not be in it.
func (c *Client) List(ctx context.Context, l ListRequest) iter.Seq2[JobReply, error] {
	return func(yield func(JobReply, error) bool) {
		for l := l; ; { // a copy: each walk begins at the first page
			page, err := c.ListPage(ctx, l)
			if err != nil {
				yield(JobReply{}, err)
				return
			}
			for _, j := range page.Jobs {
				if !yield(j, nil) {
					return
				}
			}
			if l.Cursor = page.Cursor; l.Cursor == "" {
				return
			}
		}
	}
}

// DeleteWhere deletes the selected jobs and counts them. Each job is deleted on its own: when the call fails, some may be gone and
// others not. The call does not send the request again, but the caller may. Because there may be millions of jobs, the call waits up
// to ten minutes for the answer, whatever WithTimeout says, even if the engine that took the request has died.
//
// Errors: CodeInvalidField.
func (c *Client) DeleteWhere(ctx context.Context, s Selection) (SelectionReply, error) {
	return c.where(ctx, VerbDelete, s)
}

// PauseWhere pauses the selected jobs; see DeleteWhere.
func (c *Client) PauseWhere(ctx context.Context, s Selection) (SelectionReply, error) {
	return c.where(ctx, VerbPause, s)
}

// ResumeWhere resumes the selected jobs; see DeleteWhere.
func (c *Client) ResumeWhere(ctx context.Context, s Selection) (SelectionReply, error) {
	return c.where(ctx, VerbResume, s)
}

func (c *Client) where(ctx context.Context, verb Verb, s Selection) (r SelectionReply, err error) {
	if e := s.check(); e != nil { // json.Marshal would make another selection of what is no UTF-8
		return r, e
	}
	body, err := json.Marshal(s)
	if err != nil {
		return r, err
	}
	reply, _, err := c.ask(ctx, request{subject: c.names.API(verb, ""), body: body, id: c.newRequest(), within: selectionTimeout})
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// Preview returns the next fire times of a schedule, in UTC, without a job. A schedule that has ended has none. Neither has an @at
// that has passed, although Put would fire it at once.
//
// Errors: CodeInvalidSchedule, CodeInvalidZone, CodeInvalidField.
func (c *Client) Preview(ctx context.Context, p PreviewRequest) ([]time.Time, error) {
	if e := cmp.Or(checkInstant("start", &p.Start), checkInstant("end", &p.End)); e != nil { // AppendJSON would cut them to milliseconds
		return nil, e
	}
	reply, err := c.query(ctx, c.names.API(VerbPreview, ""), p.AppendJSON(nil))
	if err != nil {
		return nil, err
	}
	preview, err := ParsePreviewReply(reply)
	return preview.Next, err
}

// Status returns the state of the service as the node that answers sees it. It has no errors besides those of every call.
func (c *Client) Status(ctx context.Context) (r StatusReply, err error) {
	reply, err := c.query(ctx, c.names.API(VerbStatus, ""), nil)
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// DrainNode makes a node hand over the partitions that it serves to other nodes that can take them, and get no more. With undo the
// node gets its share again, unless it drains of its own accord because it is not allowed to publish triggers. The call returns at
// once: Status shows how far the node is.
//
// Errors: CodeInvalidField when node is empty; CodeUnavailable, also when there is no such node.
func (c *Client) DrainNode(ctx context.Context, node string, undo bool) (r DrainReply, err error) {
	if node == "" {
		return r, errField(CodeInvalidField, "node", "is missing")
	}
	body, err := json.Marshal(DrainRequest{Undo: undo})
	if err != nil {
		return r, err
	}
	reply, _, err := c.ask(ctx, request{subject: c.names.API(VerbDrain, node), body: body, retry: true, within: c.timeout})
	if errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil { // other nodes of the service may well answer
		err = fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: "no node " + quote(node) + " answers"}, nats.ErrNoResponders)
	}
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// PutAll puts many jobs, up to window of them at a time. It calls done with what Put returned for each job, one call at a time.
// It returns nil when all are done, or the context's error when the context has ended; jobs that were not sent by then are not
// reported.
func (c *Client) PutAll(ctx context.Context, jobs iter.Seq[Job], window int, done func(Job, JobReply, error)) error {
	var report sync.Mutex
	var senders sync.WaitGroup
	work := make(chan Job)
	for range max(window, 1) {
		senders.Go(func() {
			for job := range work {
				reply, err := c.Put(ctx, job)
				report.Lock()
				done(job, reply, err)
				report.Unlock()
			}
		})
	}
	defer senders.Wait()
	defer close(work)
	for job := range jobs {
		select {
		case work <- job:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Command is a command as Send publishes it, without waiting for its outcome.
type Command struct {
	Verb    Verb
	Job     string
	Body    []byte // see AppendPut, AppendCondition and AppendFire
	Request string // the Carillon-Request header; may be empty
}

// jetStream returns JetStream's API, with the client's timeout for its answers.
func (c *Client) jetStream() (jetstream.JetStream, error) {
	return jetstream.New(c.nc, jetstream.WithDefaultTimeout(c.timeout))
}

// Send publishes a command to the log and returns its sequence there. The command then has its place in the order and will not be
// lost. It may still be refused; only an event says so.
//
// Errors: CodeInvalidJobID; CodeInvalidField for a verb that is missing or is no token of a subject; CodeUnavailable, when the outcome
// is unknown or the message says that nothing was sent; a refusal by the stream, for example because it is full, as a
// *jetstream.APIError.
func (c *Client) Send(ctx context.Context, cmd Command) (sequence uint64, err error) {
	if err := CheckJobID(cmd.Job); err != nil {
		return 0, err
	}
	if CheckJobID(string(cmd.Verb)) != nil { // it is no token of a subject; an unknown verb is refused by the engine
		return 0, errField(CodeInvalidField, "verb", "is %s; expected put, delete, pause, resume or fire", quote(string(cmd.Verb)))
	}
	js, err := c.jetStream()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	msg := nats.NewMsg(c.names.Command(cmd.Verb, cmd.Job))
	msg.Data = cmd.Body
	if cmd.Request != "" {
		msg.Header.Set(HeaderRequest, cmd.Request)
	}
	if err := ctx.Err(); err != nil {
		return 0, unsent(err, false)
	}
	if !c.connected(ctx) {
		return 0, disconnected(ctx)
	}
	ctx, forbidden := c.watchRights(ctx, msg.Subject)
	ack, err := js.PublishMsg(ctx, msg, jetstream.WithExpectStream(c.names.LogStream()))
	if err = forbidden(err); err != nil {
		return 0, c.connectionError(err)
	}
	return ack.Sequence, nil
}
