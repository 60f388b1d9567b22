package carillon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
)

// watchBuffer is how many bytes a watcher may be behind before it loses messages. nats.DefaultMaxChanLen bounds their number.
const watchBuffer = 64 << 20

// Watch returns the triggers of a topic, which may have wildcards, as they are published. Workers still get them. Triggers that are
// published while the connection is down are missed. Watch listens from the time it returns until ctx or the loop over the sequence
// ends; the sequence can be used only once. If there is an error, it is the sequence's last item: messages were lost because the loop
// was too slow (nats.ErrSlowConsumer), the user lost the right to hear them (nats.ErrPermissionViolation), or the connection was closed.
//
// Errors: CodeInvalidTopic; nats.ErrPermissionViolation; those of the connection.
func (c *Client) Watch(ctx context.Context, topic string) (iter.Seq2[Trigger, error], error) {
	if err := CheckTopicFilter(topic); err != nil {
		return nil, err
	}
	return watch(ctx, c, c.names.AllTriggers(topic), func(m *nats.Msg) (Trigger, error) {
		t, err := c.names.ParseTrigger(m.Subject, m.Header, m.Data)
		t.Received = time.Now()
		return t, err
	})
}

// WatchEvents returns all events as they are published. It works as Watch does. Errors: nats.ErrPermissionViolation; those of the
// connection.
func (c *Client) WatchEvents(ctx context.Context) (iter.Seq2[Event, error], error) {
	return watch(ctx, c, c.names.AllEvents(), func(m *nats.Msg) (Event, error) { return ParseEvent(m.Data) })
}

// watch subscribes, and yields the result of parse for each message. Messages that parse refuses are ignored: anyone with the right
// may publish to the subject.
func watch[T any](ctx context.Context, c *Client, subject string, parse func(*nats.Msg) (T, error)) (iter.Seq2[T, error], error) {
	before := c.nc.LastError()
	sub, err := c.nc.SubscribeSync(subject)
	if err != nil {
		return nil, fmt.Errorf("carillon: %w", err)
	}
	if err := cmp.Or(listening(ctx, c, sub), c.violation(before, subject)); err != nil {
		_ = sub.Unsubscribe()
		return nil, fmt.Errorf("carillon: %w", err)
	}
	forget := context.AfterFunc(ctx, func() { _ = sub.Unsubscribe() }) // also if the sequence is never walked
	return func(yield func(T, error) bool) {
		// A subscription that the server takes away with the right does not come back with it, and would be quiet for ever.
		allowed, forbidden := c.watchRightsSince(ctx, before, subject)
		defer func() {
			forget()
			_ = forbidden(nil)
			_ = sub.Unsubscribe() // fails only when that is done already
		}()
		for {
			m, err := sub.NextMsgWithContext(allowed)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				err = forbidden(err)
			}
			// nats.go forgets that a message was dropped once another has found room.
			if n, e := sub.Dropped(); err == nil && e == nil && n > 0 {
				err = nats.ErrSlowConsumer
			}
			if errors.Is(err, nats.ErrBadSubscription) && (c.nc.IsDraining() || c.nc.IsClosed()) { // else the sequence was used before
				err = nats.ErrConnectionClosed
			}
			if err != nil {
				var none T
				yield(none, fmt.Errorf("carillon: watching %s: %w", subject, err))
				return
			}
			if v, err := parse(m); err == nil && !yield(v, nil) {
				return
			}
		}
	}, nil
}

// listening waits until the server knows of a subscription.
func listening(ctx context.Context, c *Client, sub *nats.Subscription) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := sub.SetPendingLimits(-1, watchBuffer); err != nil {
		return err
	}
	for {
		err := c.nc.FlushWithContext(ctx)
		// nats.go returns ErrConnectionClosed also where the connection only broke. It subscribes again when that is back.
		if !errors.Is(err, nats.ErrConnectionClosed) || c.nc.IsClosed() {
			return err
		}
	}
}
