package carillon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// DefaultTimeout is how long a request is tried for when its context has no earlier deadline.
const DefaultTimeout = 10 * time.Second

// selectionTimeout is the same for a change of many jobs.
const selectionTimeout = 10 * time.Minute

// micro headers of an error reply.
const (
	headerServiceError     = "Nats-Service-Error"
	headerServiceErrorCode = "Nats-Service-Error-Code"
)

// Client asks a Carillon service over NATS. It keeps the connection, and a count for the names of its commands. Any number of
// goroutines may use it.
//
// Its calls return an *Error for every refusal, to be told apart with errors.Is:
//
//	if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) { … }
//
// Every call that asks may return CodeLimitExceeded, where the service had no room for the request, and did nothing; and
// CodeUnavailable, where nobody answered in time; the outcome is then unknown, and context.Canceled or
// context.DeadlineExceeded is wrapped beside it when the context ended the wait. CodeInternal is the service's own fault. An
// error of the connection, such as nats.ErrConnectionClosed, or nats.ErrPermissionViolation where the server did not take the
// request, is wrapped as it is; of many requests at once that the server does not take some may get CodeUnavailable, as a
// connection keeps its last error alone.
type Client struct {
	nc      *nats.Conn
	names   Names
	timeout time.Duration

	name     string // of this client, random
	commands atomic.Uint64
}

// ClientOption changes a default of Connect.
type ClientOption func(*Client)

// WithNames is for a service that runs with --prefix.
func WithNames(n Names) ClientOption { return func(c *Client) { c.names = n } }

// WithTimeout replaces DefaultTimeout. With less than nine seconds a request is sent again before an engine without room in its
// log refuses it, and the outcome is told as unknown.
func WithTimeout(d time.Duration) ClientOption { return func(c *Client) { c.timeout = d } }

// Connect makes a client on a connection, which stays the caller's to close. It has a name of its own, by which its commands are
// told from those of others: a process that goes on as two copies of itself connects anew in each.
func Connect(nc *nats.Conn, options ...ClientOption) *Client {
	c := &Client{nc: nc, names: DefaultNames(), timeout: DefaultTimeout, name: rand.Text()[:16]}
	for _, o := range options {
		o(c)
	}
	return c
}

// Names are the subjects and streams the client uses.
func (c *Client) Names() Names { return c.names }

// CommandOption goes with one command.
type CommandOption func(*commandOptions)

type commandOptions struct {
	ifVersion *uint64
	request   string
	once      bool
	payload   []byte
	form      PayloadForm
	payloaded bool
}

// IfVersion makes a command conditional: the job must be at version n, or, for 0, must not exist, a
// completed one counting as existing. Else the command is refused with CodeVersionConflict.
func IfVersion(n uint64) CommandOption { return func(o *commandOptions) { o.ifVersion = &n } }

// RequestID names the command itself, in the Carillon-Request header. A job takes a put or a fire twice
// in a row under one name only once. Without this option, or with "", each call makes up a name for its own retries.
func RequestID(id string) CommandOption {
	return func(o *commandOptions) { o.request = cmp.Or(id, o.request) }
}

// NoRetry has a command not sent again once its outcome is unknown; CodeUnavailable tells the caller so. What was sent before
// may still be carried out by then, or come late: a first try that a network kept back is applied after the answer to the
// second. That changes nothing as long as no other command for the job comes between the two; a job that is paused and soon
// resumed may end up paused. Fire is always so.
func NoRetry() CommandOption { return func(o *commandOptions) { o.once = true } }

// FirePayload is delivered by one Fire in place of the job's own payload. PayloadNone chooses the form.
func FirePayload(payload []byte, form PayloadForm) CommandOption {
	return func(o *commandOptions) { o.payload, o.form, o.payloaded = payload, form, true }
}

// newRequest names a command. The service keeps it with the job, and what the names of a client have in common up to their last
// dash, once for all of them.
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

// Put creates or replaces a job and returns it as it stands once that is durable. It is tried again
// when the outcome is unknown, but for NoRetry, which says what that may bring.
//
// Errors: those of Job.Validate, found before anything is sent; CodeInvalidSchedule, CodeInvalidZone and CodeInvalidField, for
// what the service alone finds; CodeVersionConflict, and then nothing was done; CodeLimitExceeded.
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
	return c.askJob(ctx, VerbGet, id, nil, "", true)
}

// Delete removes a job, with its fires that are still to come or waiting, and returns it as it last stood,
// with StatusDeleted: LastScheduled is the latest fire that came before. When an earlier try of the same
// call removed it, whose answer was lost, only its id is known; and a job that somebody else has put under the id
// by then is removed, too.
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
	err = afterRetry(retried, err)
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

// Resume lets a paused job fire again; what it missed meanwhile is skipped and counted.
//
// Errors: CodeInvalidJobID, CodeNotFound, CodeVersionConflict.
func (c *Client) Resume(ctx context.Context, id string, options ...CommandOption) (JobReply, error) {
	return c.change(ctx, VerbResume, id, options)
}

func (c *Client) change(ctx context.Context, verb Verb, id string, options []CommandOption) (JobReply, error) {
	o := c.optionsOf(options)
	return c.askJob(ctx, verb, id, AppendCondition(nil, o.ifVersion), o.request, !o.once)
}

// Fire makes one trigger of a job now, outside its schedule; its id is in the reply. IfVersion does not
// apply. When the outcome is unknown it is not tried again: a second trigger might be the result.
//
// Errors: CodeInvalidJobID, CodeNotFound, CodePayloadTooLarge, CodeInvalidJSON for a payload said to be
// JSON.
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

// ListPage returns one page of the jobs asked for, ordered by id; the request's Cursor continues from
// the page before. A page may hold fewer jobs than Limit and still not be the last.
//
// Errors: CodeInvalidField, CodeInvalidTopic.
func (c *Client) ListPage(ctx context.Context, l ListRequest) (JobsReply, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return JobsReply{}, err
	}
	reply, _, err := c.ask(ctx, request{subject: c.names.API(VerbList, ""), body: body, retry: true, within: c.timeout})
	if err != nil {
		return JobsReply{}, err
	}
	return ParseJobsReply(reply)
}

// List walks all jobs asked for, ordered by id, fetching page after page. It ends at the first error,
// which is one of ListPage's. Jobs put or deleted meanwhile may or may not be seen.
func (c *Client) List(ctx context.Context, l ListRequest) iter.Seq2[JobReply, error] {
	return func(yield func(JobReply, error) bool) {
		for l := l; ; { // each walk begins anew
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

// DeleteWhere deletes the selected jobs and counts them. Each is deleted on its own, so that
// some may be gone and others not when it fails; it is not tried again by itself. There may be millions, so it gets ten minutes,
// whatever WithTimeout says; one whose answer was lost, with the engine for one, takes all of them.
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

// Preview returns the next fire times of a schedule, without a job.
//
// Errors: CodeInvalidSchedule, CodeInvalidZone, CodeInvalidField.
func (c *Client) Preview(ctx context.Context, p PreviewRequest) ([]time.Time, error) {
	if e := cmp.Or(checkInstant("start", &p.Start), checkInstant("end", &p.End)); e != nil { // the request would have them cut to milliseconds
		return nil, e
	}
	reply, _, err := c.ask(ctx, request{subject: c.names.API(VerbPreview, ""), body: p.AppendJSON(nil), retry: true, within: c.timeout})
	if err != nil {
		return nil, err
	}
	preview, err := ParsePreviewReply(reply)
	return preview.Next, err
}

// Status returns the state of the service as the node that answers sees it.
func (c *Client) Status(ctx context.Context) (r StatusReply, err error) {
	reply, _, err := c.ask(ctx, request{subject: c.names.API(VerbStatus, ""), retry: true, within: c.timeout})
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// DrainNode has a node hand over the partitions that it serves, as long as others can take them; with undo it gets its
// share again. It returns at once: Status shows how far the node is.
//
// Errors: CodeInvalidField without a node; CodeUnavailable, also where there is no such node.
func (c *Client) DrainNode(ctx context.Context, node string, undo bool) (r DrainReply, err error) {
	if node == "" {
		return r, errField(CodeInvalidField, "node", "is missing")
	}
	body, err := json.Marshal(DrainRequest{Undo: undo})
	if err != nil {
		return r, err
	}
	reply, _, err := c.ask(ctx, request{subject: c.names.API(VerbDrain, node), body: body, retry: true, within: c.timeout})
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// PutAll puts many jobs, up to window of them under way at once, and calls done, one call at a time,
// with each outcome, which is one of Put's. It returns when all are done, or, with the context's error,
// when the context has ended; what was not sent by then is not reported.
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

// Command is a command as it is published, for who does not wait for its outcome.
type Command struct {
	Verb    Verb
	Job     string
	Body    []byte // see AppendPut, AppendCondition and AppendFire
	Request string // the Carillon-Request header; may be empty
}

// AppendPut appends the body of a put.
func AppendPut(dst []byte, job *Job, ifVersion *uint64) []byte {
	from := len(dst)
	dst = job.AppendJSON(dst)
	if ifVersion == nil {
		return dst
	}
	dst = dst[:len(dst)-1]
	if len(dst) > from+1 {
		dst = append(dst, ',')
	}
	return append(appendUint(append(dst, `"if_version":`...), *ifVersion), '}')
}

// jetStream is JetStream's API, whose answers are waited for as long as the service's.
func (c *Client) jetStream() (jetstream.JetStream, error) {
	return jetstream.New(c.nc, jetstream.WithDefaultTimeout(c.timeout))
}

// Send publishes a command to the log and returns its sequence there: it is accepted in order and will
// not be lost, but may still be refused, which only an event tells.
//
// Errors: CodeInvalidJobID; CodeUnavailable, where the outcome is unknown; the refusal of the stream, such
// as being full, as a *jetstream.APIError.
func (c *Client) Send(ctx context.Context, cmd Command) (sequence uint64, err error) {
	if err := CheckJobID(cmd.Job); err != nil {
		return 0, err
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
	if !c.connected(ctx) {
		return 0, c.connectionError(errNotSent)
	}
	ctx, forbidden := c.watchRights(ctx, msg.Subject)
	ack, err := js.PublishMsg(ctx, msg, jetstream.WithExpectStream(c.names.LogStream()))
	if err = forbidden(err); err != nil {
		return 0, c.connectionError(err)
	}
	return ack.Sequence, nil
}

func (c *Client) askJob(ctx context.Context, verb Verb, id string, body []byte, requestID string, retry bool) (JobReply, error) {
	if err := CheckJobID(id); err != nil {
		return JobReply{}, err
	}
	reply, retried, err := c.ask(ctx, request{subject: c.names.API(verb, id), body: body, id: requestID, retry: retry, within: c.timeout})
	if err := afterRetry(retried, err); err != nil {
		return JobReply{}, err
	}
	return ParseJobReply(reply)
}

// afterRetry gives the error of a command that may have a condition. A conflict that only a later try met says nothing: an
// earlier one may have been applied, and another command after it.
func afterRetry(retried bool, err error) error {
	if !retried || !errors.Is(err, &Error{Code: CodeVersionConflict}) {
		return err
	}
	return &Error{Code: CodeUnavailable, Message: "no answer in time, and now " + AsError(err).Message + "; the outcome is unknown"}
}

type request struct {
	subject string
	body    []byte
	id      string        // for the Carillon-Request header
	retry   bool          // also when an earlier try may have been applied
	within  time.Duration // of all tries
}

// ask sends a request until it is answered otherwise than with unavailable. Where nobody listens, or the connection is
// down, the request was not applied and may always be sent again. uncertain tells whether a try before the one
// that was answered may have been applied.
func (c *Client) ask(ctx context.Context, r request) (reply []byte, uncertain bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	msg := nats.NewMsg(r.subject)
	msg.Data = r.body
	if r.id != "" {
		msg.Header.Set(HeaderRequest, r.id)
	}
	began := time.Now()
	var before error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		answer, err := c.try(ctx, msg, r)
		if err == nil {
			if answer.Header.Get(headerServiceErrorCode) == "" {
				return answer.Data, uncertain, nil
			}
			refusal := ParseError(answer.Data)
			if refusal.Code != CodeUnavailable {
				return nil, uncertain, refusal
			}
			err = refusal
		} else if err = c.connectionError(err); !errors.Is(err, &Error{Code: CodeUnavailable}) {
			return nil, uncertain, err
		}
		uncertain = uncertain || !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, errNotSent)
		if uncertain && !r.retry {
			return nil, true, err
		}
		if !r.retry && time.Since(began) > c.timeout { // nobody listens: what would take long has not begun
			return nil, false, err
		}
		if ctx.Err() != nil && before != nil { // the last try was cut short: what the one before met says more
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w (%w)", err, ctx.Err())
			}
			return nil, uncertain, fmt.Errorf("%w; before that: %w", err, before)
		}
		before = err
		select {
		case <-ctx.Done():
			return nil, uncertain, fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// tryTime is how long an answer is waited for before a request is sent again. One that was lost leaves time for two more at least,
// and for up to ten where there is much: to a server that is cut off from the others every other one may go, until these notice.
// An engine waits three seconds for room in its log before it refuses a command, which is to be heard.
func tryTime(within time.Duration) time.Duration {
	return min(within/3, max(DefaultTimeout/3, within/10))
}

// try sends once.
func (c *Client) try(ctx context.Context, msg *nats.Msg, r request) (*nats.Msg, error) {
	if r.retry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryTime(r.within))
		defer cancel()
	}
	if !c.connected(ctx) {
		return nil, errNotSent
	}
	ctx, forbidden := c.watchRights(ctx, msg.Subject)
	answer, err := c.nc.RequestMsgWithContext(ctx, msg)
	return answer, forbidden(err)
}

// rightsAfter is how long an answer may be late until it is looked whether there is none for want of rights; and how often then.
const rightsAfter = 100 * time.Millisecond

// watchRights ends ctx soon after the server refuses to take what is published to a subject from now on: it says so to the
// connection, and whoever waits for an answer gets none. The caller calls forbidden when it waits no more, with the error that it
// met, if any: what was said takes its place.
func (c *Client) watchRights(ctx context.Context, subject string) (_ context.Context, forbidden func(error) error) {
	before := c.nc.LastError()
	ctx, cancel := context.WithCancel(ctx)
	look := time.AfterFunc(rightsAfter, func() {
		again := time.NewTicker(rightsAfter)
		defer again.Stop()
		for c.violation(before, subject) == nil {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
		}
		cancel()
	})
	return ctx, func(err error) error {
		look.Stop()
		cancel()
		if err == nil {
			return nil
		}
		return cmp.Or(c.violation(before, subject), err)
	}
}

// violation is what the server has said since before of rights to a subject that are missing, or nil.
func (c *Client) violation(before error, subject string) error {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || last == before || !strings.Contains(last.Error(), `"`+subject+`"`) {
		return nil
	}
	return last
}

var errNotSent = errors.New("the connection is down")

// connected waits until what is sent goes out, for the client's timeout at the most; ok is false when that or ctx ends first.
// A connection that is down keeps what is sent until it is back: a command would be carried out when its caller has long
// gone on.
func (c *Client) connected(ctx context.Context) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for c.nc.IsReconnecting() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

// connectionError words an error of nats.go; one that a later try may get over is CodeUnavailable.
func (c *Client) connectionError(err error) error {
	unavailable := func(message string) error {
		return fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: message}, err)
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return unavailable("no Carillon service answers under the prefix " + quote(c.names.Prefix))
	case errors.Is(err, errNotSent):
		return unavailable("nothing was sent")
	case errors.Is(err, nats.ErrMaxPayload):
		return &Error{Code: CodePayloadTooLarge, Message: fmt.Sprintf("the request is larger than the %d bytes this NATS server takes", c.nc.MaxPayload())}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded):
		return unavailable("no answer in time; the outcome is unknown")
	}
	if _, ok := errors.AsType[net.Error](err); ok { // a broken connection that nats.go has not noticed otherwise
		return unavailable("the connection broke; the outcome is unknown")
	}
	return fmt.Errorf("carillon: %w", err)
}

// readReply reads a reply of the rare kinds.
func readReply(body []byte, reply any) error {
	if err := json.Unmarshal(body, reply); err != nil {
		return &Error{Code: CodeInternal, Message: "a reply that cannot be read: " + err.Error()}
	}
	return nil
}
