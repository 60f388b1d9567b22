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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// DefaultTimeout is for how long a request is tried, unless its context ends earlier.
const DefaultTimeout = 10 * time.Second

// selectionTimeout is the same for a request that changes a selection of jobs.
const selectionTimeout = 10 * time.Minute

// micro headers of an error reply.
const (
	headerServiceError     = "Nats-Service-Error"
	headerServiceErrorCode = "Nats-Service-Error-Code"
)

// Client sends commands and queries to a Carillon service over NATS. Any number of goroutines may use it.
//
// When the service refuses a request, the call returns an *Error. Tell refusals apart with errors.Is:
//
//	if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) { … }
//
// Beside the errors that it names, every call that sends a request may return
//
//   - CodeLimitExceeded: the service has no room for the request, and did nothing;
//   - CodeUnavailable: nobody answered in time, and the outcome is unknown, unless the message says that nothing was sent. If the
//     context ended the wait, or was over before it, its error (context.Canceled or context.DeadlineExceeded) is wrapped, too;
//   - CodeInternal: a fault of the service;
//   - an error of the connection, wrapped, such as nats.ErrConnectionClosed, or nats.ErrPermissionViolation if the user may not
//     publish the request. A connection keeps only its last error, so when the server refuses many requests at once, some of the
//     calls may return CodeUnavailable instead.
type Client struct {
	nc      *nats.Conn
	names   Names
	timeout time.Duration

	name     string        // random: what the names of this client's commands begin with
	commands atomic.Uint64 // counts them
}

// ClientOption changes a default of Connect.
type ClientOption func(*Client)

// WithNames is for a service that runs with --prefix: give NamesFor of that prefix.
func WithNames(n Names) ClientOption { return func(c *Client) { c.names = n } }

// WithTimeout replaces DefaultTimeout, unless d is 0. An engine whose log is nearly full waits three seconds for room before it
// refuses a command. With a timeout below nine seconds the client sends the command again before that, and reports the outcome as
// unknown.
func WithTimeout(d time.Duration) ClientOption {
	return func(c *Client) { c.timeout = cmp.Or(d, c.timeout) }
}

// Connect makes a client on a connection, which the caller closes. Each client has a random name of its own, by which the service
// tells a command that was sent again from a new one. So do not go on with one client in two copies of a process, such as two
// virtual machines started from one snapshot: call Connect again in each.
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

// RequestID names the command itself, in the Carillon-Request header. Of two puts, or two fires, of a job in a row that have the
// same name, only the first has an effect. Without this option, or with "", each call makes up a name, which protects its own retries.
func RequestID(id string) CommandOption {
	return func(o *commandOptions) { o.request = cmp.Or(id, o.request) }
}

// NoRetry makes a call return CodeUnavailable as soon as the outcome of its command is unknown, instead of sending the command again.
//
// Why one may want that: a first try that the network held up may be applied after the second one was answered. This does no harm
// unless another command for the same job was applied in between: a job that was paused and soon resumed may end up paused.
// With NoRetry, too, a command may still be applied after the call returned. Fire never sends a command again.
func NoRetry() CommandOption { return func(o *commandOptions) { o.once = true } }

// FirePayload has Fire deliver this payload in place of the job's own, once. With PayloadNone the form is chosen to suit the bytes.
func FirePayload(payload []byte, form PayloadForm) CommandOption {
	return func(o *commandOptions) { o.payload, o.form, o.payloaded = payload, form, true }
}

// newRequest names a command. The service keeps the name with the job; it stores the part before the last dash only once, however
// many jobs share it.
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

// Put creates or replaces a job, and returns it as it then stands, once that is durable. The command is sent again while its outcome
// is unknown, unless NoRetry is given.
//
// A job that is there is replaced as a whole. If it equals the new one and is not completed, nothing changes, its version included; else
// its schedule begins anew, so that an @in, or an @every without a Start, counts from now on.
//
// Errors: those of Job.Validate, before anything is sent; CodeInvalidSchedule, CodeInvalidZone and CodeInvalidField, for what only
// the service can check; CodeVersionConflict, and then nothing was done; CodeLimitExceeded.
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

// Delete removes a job, and with it the fires that are pending or waiting. It returns the job as it last stood, with StatusDeleted;
// LastScheduled is its latest fire.
//
// If the answer is lost, the command is sent again. If the first try had removed the job, then only the id of the result is set;
// and if somebody else has put a new job under the id in between, that one is removed, too (see NoRetry).
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

// Fire makes one trigger of a job now, outside its schedule; the trigger's id is in the reply. IfVersion does not
// apply. When the outcome is unknown the command is not sent again: there might be a second trigger.
//
// Errors: CodeInvalidJobID, CodeNotFound, CodePayloadTooLarge, CodeInvalidJSON for a payload whose form is PayloadJSON and that is none.
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

// ListPage returns one page of the jobs asked for, ordered by id. To get the next page, put the reply's Cursor into the request; the
// last page has none. Any page may hold fewer jobs than Limit.
//
// Errors: CodeInvalidField, CodeInvalidTopic.
func (c *Client) ListPage(ctx context.Context, l ListRequest) (JobsReply, error) {
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

// List walks all jobs asked for, ordered by id, and fetches them page by page. It ends at the first error,
// which is one of ListPage's. Jobs that are put or deleted meanwhile may or may not be seen.
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

// DeleteWhere deletes the selected jobs and counts them. Each job is deleted on its own, so when the call fails some may be gone and
// others not; it is not sent again by itself, but the caller may repeat it. As there may be millions of jobs, the call waits ten
// minutes for its answer, whatever WithTimeout says, also when the engine that was asked has died.
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

// Preview returns the next fire times of a schedule, in UTC, without a job. There are none where the schedule has ended;
// an @at that has passed, which a Put would fire at once, has none either.
//
// Errors: CodeInvalidSchedule, CodeInvalidZone, CodeInvalidField.
func (c *Client) Preview(ctx context.Context, p PreviewRequest) ([]time.Time, error) {
	if e := cmp.Or(checkInstant("start", &p.Start), checkInstant("end", &p.End)); e != nil { // the request cuts to milliseconds
		return nil, e
	}
	reply, err := c.query(ctx, c.names.API(VerbPreview, ""), p.AppendJSON(nil))
	if err != nil {
		return nil, err
	}
	preview, err := ParsePreviewReply(reply)
	return preview.Next, err
}

// Status returns the state of the service, as the node that answers sees it. It has no errors of its own.
func (c *Client) Status(ctx context.Context) (r StatusReply, err error) {
	reply, err := c.query(ctx, c.names.API(VerbStatus, ""), nil)
	if err != nil {
		return r, err
	}
	return r, readReply(reply, &r)
}

// DrainNode has a node hand over the partitions that it serves to others that can take them, and get no more; with undo it gets its
// share again, unless it drains by itself, as one that may not put out triggers. It returns at once: Status shows how far the node is.
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
	reply, err := c.query(ctx, c.names.API(VerbDrain, node), body)
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
// Errors: CodeInvalidJobID; CodeInvalidField for a verb that is missing or no word; CodeUnavailable, where the outcome is unknown; the
// refusal of the stream, such as being full, as a *jetstream.APIError.
func (c *Client) Send(ctx context.Context, cmd Command) (sequence uint64, err error) {
	if err := CheckJobID(cmd.Job); err != nil {
		return 0, err
	}
	if CheckJobID(string(cmd.Verb)) != nil { // it is no token of a subject; one that is unknown the engine refuses
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
		return 0, unsent(err)
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

// query sends a request that may be sent again whatever became of earlier tries.
func (c *Client) query(ctx context.Context, subject string, body []byte) (reply []byte, err error) {
	reply, _, err = c.ask(ctx, request{subject: subject, body: body, retry: true, within: c.timeout})
	return reply, err
}

// afterRetry gives the error of a command that may have a condition. A version conflict that only a later try met does not tell the
// outcome: an earlier try may have been applied, and another command after it.
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

// ask sends a request, again and again until the answer is another than CodeUnavailable, r.within is over, or it must not be sent
// again. While nobody listens, or the connection is down, it was not applied and may always be sent again. uncertain tells whether a
// try before the one that was answered may have been applied.
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
		switch over := ctx.Err(); {
		case over != nil && before == nil:
			return nil, false, unsent(over)
		case over != nil:
			return nil, uncertain, ended(ctx, before)
		}
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
		if !r.retry && time.Since(began) > c.timeout { // nobody listens: r.within is for work that has not even begun
			return nil, false, err
		}
		if ctx.Err() != nil && before != nil { // the last try was cut short: the error of the one before says more
			return nil, uncertain, fmt.Errorf("%w; before that: %w", ended(ctx, err), before)
		}
		before = err
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// ended adds to the error of the last try that the context is over, unless it says so itself.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, ctx.Err())
}

// tryTime is for how long one try waits for its answer. After a lost one there is time for two more at least, and with a long timeout
// for up to ten: until the other servers notice that one of them is cut off, they may pass every other request to it. By default it
// is more than the three seconds after which an engine without room in its log refuses a command, so that the refusal is heard.
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

// rightsAfter is how long to wait for an answer before looking whether the server refused the request, and how often to look then.
const rightsAfter = 100 * time.Millisecond

// watchRights ends the context that it returns soon after the server refuses to take a message on one of these subjects. The server
// tells only the connection of that, so whoever waits for the answer would wait in vain. The caller calls forbidden when it waits no
// more, with the error that it met, if any; forbidden returns the server's refusal in its place, if there was one.
func (c *Client) watchRights(ctx context.Context, subjects ...string) (_ context.Context, forbidden func(error) error) {
	before := c.nc.LastError()
	ctx, cancel := context.WithCancel(ctx)
	look := time.AfterFunc(rightsAfter, func() {
		again := time.NewTicker(rightsAfter)
		defer again.Stop()
		for c.violation(before, subjects...) == nil {
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
		return cmp.Or(c.violation(before, subjects...), err)
	}
}

// violation is the connection's last error if it says that rights to one of the subjects are missing, and is not the one from before;
// else nil.
func (c *Client) violation(before error, subjects ...string) error {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || last == before ||
		!slices.ContainsFunc(subjects, func(s string) bool { return strings.Contains(last.Error(), `"`+s+`"`) }) {
		return nil
	}
	return last
}

var errNotSent = errors.New("the connection is down")

// connected waits until the connection is up, for the client's timeout at most; ok is false when that or ctx ends first. A connection
// that is down would keep what is sent until it is back, and a command be carried out long after its caller gave up.
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

// unsent is the error of a request that was not sent, with the reason.
func unsent(why error) error {
	return fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: "nothing was sent"}, why)
}

// connectionError words an error of nats.go; if a later try may succeed, it becomes CodeUnavailable.
func (c *Client) connectionError(err error) error {
	unavailable := func(message string) error {
		return fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: message}, err)
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return unavailable("no Carillon service answers under the prefix " + quote(c.names.Prefix))
	case errors.Is(err, errNotSent):
		return unsent(err)
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

// readReply reads a reply of a kind that is rare enough for encoding/json.
func readReply(body []byte, reply any) error {
	if err := json.Unmarshal(body, reply); err != nil {
		return &Error{Code: CodeInternal, Message: "a reply that cannot be read: " + err.Error()}
	}
	return nil
}
