package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine"
)

// logReader reads the records of a log stream in order.
//
// A consumer gives them fastest. But nats-server stores a command with a carriage return in its subject, and sends it as it is; to the client
// library the line is malformed, so it connects anew, each time. So when the connection was lost, records are asked for one by one, which come
// as JSON, until there was no such subject among as many as a consumer may have had on the way. (The engine's reader does the same: see breaks
// in engine/streams.)
type logReader struct {
	nc       *nats.Conn
	lost     <-chan struct{}
	stream   jetstream.Stream
	at       uint64          // the last record's sequence
	single   bool            // records are asked for one by one
	few      []engine.Record // and have come
	consumer string
	records  *puller // nil: none is in use
}

// lostConnection are the options of a connection for a logReader.
func lostConnection(lost chan<- struct{}) []nats.Option {
	return []nats.Option{
		nats.ReconnectWait(100 * time.Millisecond),
		nats.DisconnectErrHandler(func(*nats.Conn, error) {
			select {
			case lost <- struct{}{}:
			default:
			}
		}),
	}
}

// next returns the next record.
func (l *logReader) next(ctx context.Context) (r engine.Record, err error) {
	for {
		switch {
		case len(l.few) > 0:
			r, l.few = l.few[0], l.few[1:]
			l.at = r.Seq
			return r, nil
		case l.single:
			if l.few, l.single, err = l.getFew(ctx); err != nil {
				return r, err
			}
			continue
		case l.records == nil:
			if err := l.consume(ctx); err != nil {
				return r, err
			}
		}
		m, meta, err := l.records.next(ctx)
		if err == nil {
			l.at = meta.Sequence.Stream
			return engine.Record{Seq: l.at, Time: meta.Timestamp.UnixNano(), Subject: m.Subject, Header: headerFields(m.Header), Data: m.Data}, nil
		}
		if !errors.Is(err, errConnectionLost) {
			return r, err
		}
		l.records.stop()
		if err := l.nc.Publish(jetstream.DefaultAPIPrefix+"CONSUMER.DELETE."+l.name()+"."+l.consumer, nil); err != nil {
			return r, err
		}
		l.records, l.single = nil, true
	}
}

func (l *logReader) name() string { return l.stream.CachedInfo().Config.Name }

// getFew returns the next records, as many as a pull returns, or less if the stream ends before. more says that one of them could have ended
// the connection.
func (l *logReader) getFew(ctx context.Context) (few []engine.Record, more bool, err error) {
	for at := l.at; len(few) < pulled; at = few[len(few)-1].Seq {
		m, err := l.nc.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+l.name(), fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, at+1))
		if err != nil {
			return nil, false, fmt.Errorf("get record %d: %w", at+1, err)
		}
		var answer struct {
			Error   *jetstream.APIError `json:"error"`
			Message struct {
				Subject string    `json:"subject"`
				Seq     uint64    `json:"seq"`
				Time    time.Time `json:"time"`
				Header  []byte    `json:"hdrs"`
				Data    []byte    `json:"data"`
			} `json:"message"`
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			return nil, false, fmt.Errorf("get record %d: %w", at+1, err)
		}
		if e := answer.Error; e != nil && e.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return few, more, nil
		} else if e != nil {
			return nil, false, fmt.Errorf("get record %d: %w", at+1, e)
		}
		r := engine.Record{Seq: answer.Message.Seq, Time: answer.Message.Time.UnixNano(), Subject: answer.Message.Subject, Data: answer.Message.Data}
		if h, err := nats.DecodeHeadersMsg(answer.Message.Header); err == nil {
			r.Header = headerFields(h)
		}
		few, more = append(few, r), more || strings.Contains(r.Subject, "\r")
	}
	return few, more, nil
}

// consume makes a consumer that begins behind the last record.
func (l *logReader) consume(ctx context.Context) error {
	c, err := l.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: l.at + 1, AckPolicy: jetstream.AckNonePolicy,
		InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return err
	}
	l.consumer = c.CachedInfo().Name
	l.records, err = newPuller(l.nc, l.lost, l.name(), l.consumer)
	return err
}

// stop ends what consume began. Else the consumer would stay for a minute, and cost the server work for each message that is stored meanwhile.
// A user without the right to remove it still gets the dump.
func (l *logReader) stop(ctx context.Context) {
	if l.records != nil {
		l.records.stop()
		_ = l.stream.DeleteConsumer(ctx, l.consumer)
	}
}

// puller takes the messages of a consumer one by one. The client library would take a message with a header Status for a status of
// the server, and skip it or end there; but anyone who may send commands may send such a message.
type puller struct {
	nc    *nats.Conn
	lost  <-chan struct{} // gets something when the connection is lost
	sub   *nats.Subscription
	came  chan *nats.Msg
	api   string
	due   int    // messages that were asked for and have not come yet
	taken uint64 // the consumer sequence of the last message
}

// errConnectionLost ends a puller: what was on the way is lost, and the server no longer knows what was asked for.
var errConnectionLost = errors.New("the connection was lost")

// pulled is how many messages are asked for at once.
const pulled = 64

func newPuller(nc *nats.Conn, lost <-chan struct{}, stream, consumer string) (*puller, error) {
	p := &puller{
		nc: nc, lost: lost, came: make(chan *nats.Msg, pulled+1), // all messages of a pull, and a status
		api: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
	}
	var err error
	p.sub, err = nc.ChanSubscribe(nc.NewInbox(), p.came)
	return p, err
}

func (p *puller) stop() { _ = p.sub.Unsubscribe() } // fails only on a closed connection, which has no subscriptions

func (p *puller) next(ctx context.Context) (*nats.Msg, *nats.MsgMetadata, error) {
	if p.due == 0 {
		if err := p.nc.PublishRequest(p.api, p.sub.Subject, fmt.Appendf(nil, `{"batch":%d}`, pulled)); err != nil {
			return nil, nil, err
		}
		p.due = pulled
	}
	var m *nats.Msg
	select {
	case m = <-p.came:
	case <-p.lost:
		return nil, nil, errConnectionLost
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if m.Subject == p.sub.Subject { // a status of the server; a record comes on its own subject
		return nil, nil, fmt.Errorf("%s %s", m.Header.Get("Status"), m.Header.Get("Description"))
	}
	meta, err := m.Metadata()
	if err != nil {
		return nil, nil, err
	}
	if meta.Sequence.Consumer != p.taken+1 {
		return nil, nil, fmt.Errorf("records before %d were lost on the way here; try again", meta.Sequence.Stream)
	}
	p.due, p.taken = p.due-1, meta.Sequence.Consumer
	return m, meta, nil
}

func headerFields(h nats.Header) []engine.Field {
	var list []engine.Field
	for name, values := range h {
		for _, v := range values {
			list = append(list, engine.Field{Name: name, Value: v})
		}
	}
	slices.SortStableFunc(list, func(a, b engine.Field) int { return strings.Compare(a.Name, b.Name) })
	return list
}
