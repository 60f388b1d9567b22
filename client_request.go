package carillon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Requests: how one is sent, tried again, and given up.

// headerServiceErrorCode is the header by which an error reply of a NATS micro service is told from others.
const headerServiceErrorCode = "Nats-Service-Error-Code"

func (c *Client) askJob(ctx context.Context, verb Verb, id string, body []byte, requestID string, retry bool) (JobReply, error) {
	if err := CheckJobID(id); err != nil {
		return JobReply{}, err
	}
	reply, retried, err := c.ask(ctx, request{subject: c.names.API(verb, id), body: body, id: requestID, retry: retry, within: c.timeout})
	if err := afterRetry(verb, retried, err); err != nil {
		return JobReply{}, err
	}
	return ParseJobReply(reply)
}

// query sends a request that changes nothing.
func (c *Client) query(ctx context.Context, subject string, body []byte) (reply []byte, err error) {
	reply, _, err = c.ask(ctx, request{subject: subject, body: body, query: true, retry: true, within: c.timeout})
	return reply, err
}

// afterRetry returns the error of a command that may have a condition. A condition that only a later try found not to hold says nothing
// about the outcome: an earlier try may have been applied, and then another command.
func afterRetry(verb Verb, retried bool, err error) error {
	conflict := errors.Is(err, &Error{Code: CodeVersionConflict}) || verb == VerbPut && errors.Is(err, &Error{Code: CodeNotFound})
	if !retried || !conflict {
		return err
	}
	return refusedLater(unanswered, AsError(err))
}

// didNothing ends the message of a service that did nothing in the try that it refused.
const didNothing = "; nothing was done"

// unanswered is what was before a try that was refused.
const unanswered = "no answer in time"

// refusedLater is the error of a command that a later try was refused, for a reason that says nothing about the tries before it.
func refusedLater(before string, refusal *Error) *Error {
	why := strings.TrimSuffix(refusal.Message, didNothing)
	return &Error{Code: CodeUnavailable, Message: before + ", and now " + why + "; the outcome is unknown"}
}

type request struct {
	subject string
	body    []byte
	id      string        // for the Carillon-Request header
	query   bool          // it changes nothing, so copies of it may be under way at once
	retry   bool          // send it again even when an earlier try may have been applied
	within  time.Duration // for all tries together
	tried   bool          // the same was sent before, and may have been applied
}

// ask sends a request, again and again until the answer is not CodeUnavailable (nor, after a try that may have been applied,
// CodeLimitExceeded), r.within is over, or the request must not be sent again. A try was certainly not applied if nobody listened or the
// connection was down; after such a try the request may always be sent again. uncertain tells whether a try before the one that was
// answered may have been applied; then no error says that nothing was sent.
func (c *Client) ask(ctx context.Context, r request) (reply []byte, uncertain bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	msg := nats.NewMsg(r.subject)
	msg.Data = r.body
	if r.id != "" {
		msg.Header.Set(HeaderRequest, r.id)
	}
	began := time.Now()
	uncertain = r.tried
	var before error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		switch over := ctx.Err(); {
		case over != nil && before == nil:
			return nil, uncertain, unsent(over, uncertain)
		case over != nil:
			return nil, uncertain, ended(ctx, before)
		}
		answer, err := c.try(ctx, msg, r)
		if err == nil {
			if answer.Header.Get(headerServiceErrorCode) == "" {
				return answer.Data, uncertain, nil
			}
			refusal := ParseError(answer.Data)
			switch {
			case refusal.Code == CodeUnavailable:
				err = refusal
			case refusal.Code == CodeLimitExceeded && uncertain && !r.query: // this try did nothing, one before it may have
				err = refusedLater(unanswered, refusal)
			default:
				return nil, uncertain, refusal
			}
		} else if err = c.connectionError(err); !errors.Is(err, &Error{Code: CodeUnavailable}) {
			return nil, uncertain, err
		}
		uncertain = uncertain || !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, errNotSent)
		if uncertain && errors.Is(err, errNotSent) {
			err = unsent(errNotSent, uncertain)
		}
		if uncertain && !r.retry {
			return nil, true, err
		}
		if !r.retry && time.Since(began) > c.timeout { // nobody listens: r.within is meant for the work, which has not even begun
			return nil, false, err
		}
		// If the last try was cut short, the error of the one before says more, unless that one was not even sent.
		if ctx.Err() != nil && before != nil && !errors.Is(before, errNotSent) {
			return nil, uncertain, fmt.Errorf("%w; before that: %w", ended(ctx, err), before)
		}
		before = err
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// ended adds the context's error to the error of the last try, unless that wraps it already.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, ctx.Err())
}

// tryTime is how long one try of a command waits for its answer, when all tries together have the time within. That is enough for at
// least three tries, and for up to ten if it is long: until the other servers notice that one of them is cut off, they may pass every
// other request to it. By default a try waits longer than the three seconds after which an engine without room in its log refuses a
// command, so that the refusal is heard.
func tryTime(within time.Duration) time.Duration {
	return min(within/3, max(DefaultTimeout/3, within/10))
}

// try sends a command once, or a query until it is answered.
func (c *Client) try(ctx context.Context, msg *nats.Msg, r request) (*nats.Msg, error) {
	if r.retry && !r.query {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryTime(r.within))
		defer cancel()
	}
	if !c.connected(ctx) {
		return nil, errNotSent
	}
	ctx, forbidden := c.watchRights(ctx, msg.Subject)
	if r.query {
		answer, err := c.trySeveral(ctx, msg, tryTime(r.within)/2)
		return answer, forbidden(err)
	}
	answer, err := c.nc.RequestMsgWithContext(ctx, msg)
	return answer, forbidden(err)
}

// trySeveral sends a query, and again after each pause, until one of them is answered: NATS passes each to any of the engines, also to one
// that is frozen or cut off, as long as it has not noticed that. Commands are not sent again while a try may still be answered: one that
// is only late could be applied after its copy was answered, and after the command that the caller gives next.
func (c *Client) trySeveral(ctx context.Context, msg *nats.Msg, pause time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan *nats.Msg, 1)
	send := func() {
		if answer, err := c.nc.RequestMsgWithContext(ctx, msg); err == nil {
			select {
			case answered <- answer:
				cancel()
			default:
			}
		}
	}
	further := time.AfterFunc(pause, func() {
		again := time.NewTicker(pause)
		defer again.Stop()
		for ctx.Err() == nil {
			go send()
			select {
			case <-ctx.Done():
			case <-again.C:
			}
		}
	})
	defer further.Stop()
	answer, err := c.nc.RequestMsgWithContext(ctx, msg)
	select {
	case answer := <-answered:
		return answer, nil
	default:
		return answer, err
	}
}

// rightsAfter is how long to wait for an answer before looking whether the server refused the request, and the time between two looks.
const rightsAfter = 100 * time.Millisecond

// watchRights returns a context that ends soon after the server refuses to take a message on one of these subjects. The server
// reports that only to the connection, so the caller would wait for the answer in vain. When the wait is over, the caller must call
// forbidden with the error that it met, or nil; forbidden returns the server's refusal in place of that error, if there was one.
func (c *Client) watchRights(ctx context.Context, subjects ...string) (_ context.Context, forbidden func(error) error) {
	return c.watchRightsSince(ctx, c.nc.LastError(), subjects...)
}

// watchRightsSince is watchRights where the connection's last error was before when it began.
func (c *Client) watchRightsSince(ctx context.Context, before error, subjects ...string) (_ context.Context, forbidden func(error) error) {
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

// violation returns the connection's last error if it says that rights to one of the subjects are missing, and is not the error from
// before; otherwise nil.
func (c *Client) violation(before error, subjects ...string) error {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || last == before ||
		!slices.ContainsFunc(subjects, func(s string) bool { return strings.Contains(last.Error(), `"`+s+`"`) }) {
		return nil
	}
	return last
}

var errNotSent = errors.New("the connection is down")

// connected waits until the connection is up, for at most the client's timeout; ok is false when that or ctx ends first. nats.go
// keeps what is sent while the connection is down until it is up again: a command would be carried out long after its caller gave up.
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

// unsent is the error of a request that was not sent, with the reason. tried says that it had been sent before.
func unsent(why error, tried bool) error {
	message := "nothing was sent"
	if tried {
		message = "no answer in time, and it was not sent again; the outcome is unknown"
	}
	return fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: message}, why)
}

// disconnected is the error of a request that was not sent, as the connection was down until the client's timeout was over or ctx ended.
func disconnected(ctx context.Context) error {
	err := unsent(errNotSent, false)
	if ctx.Err() != nil {
		return ended(ctx, err)
	}
	return err
}

// connectionError puts an error of nats.go into words; if a later try may succeed, it becomes CodeUnavailable.
func (c *Client) connectionError(err error) error {
	unavailable := func(message string) error {
		return fmt.Errorf("%w (%w)", &Error{Code: CodeUnavailable, Message: message}, err)
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return unavailable("no Carillon service answers under the prefix " + quote(c.names.Prefix))
	case errors.Is(err, errNotSent):
		return unsent(err, false)
	case errors.Is(err, nats.ErrMaxPayload):
		return &Error{Code: CodePayloadTooLarge, Message: fmt.Sprintf("the request is larger than the %d bytes this NATS server takes", c.nc.MaxPayload())}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded):
		return unavailable("no answer in time; the outcome is unknown")
	}
	if _, ok := errors.AsType[net.Error](err); ok { // the connection is broken, and this is the first that nats.go notices of it
		return unavailable("the connection broke; the outcome is unknown")
	}
	return fmt.Errorf("carillon: %w", err)
}

// readReply reads a kind of reply that is rare enough for encoding/json.
func readReply(body []byte, reply any) error {
	if err := json.Unmarshal(body, reply); err != nil {
		return &Error{Code: CodeInternal, Message: "a reply that cannot be read: " + err.Error()}
	}
	return nil
}
