package streams

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// The consumer of a reader: how it is made and removed, and what its deliveries say.

// consumerRequest has the part of the API's consumer configuration that is used here; durations are in ns.
type consumerRequest struct {
	Stream string         `json:"stream_name"`
	Config consumerConfig `json:"config"`
	Action string         `json:"action"`
}

type consumerConfig struct {
	Name              string        `json:"name"`
	DeliverSubject    string        `json:"deliver_subject"`
	DeliverPolicy     string        `json:"deliver_policy"`
	OptStartSeq       uint64        `json:"opt_start_seq"`
	AckPolicy         string        `json:"ack_policy"`
	ReplayPolicy      string        `json:"replay_policy"`
	MaxDeliver        int           `json:"max_deliver"`
	FlowControl       bool          `json:"flow_control"`
	Heartbeat         time.Duration `json:"idle_heartbeat"`
	InactiveThreshold time.Duration `json:"inactive_threshold"`
	Replicas          int           `json:"num_replicas"`
	MemoryStorage     bool          `json:"mem_storage"`
}

// create makes the consumer, which begins at a sequence. If there is one of the same name, it is left from before, and is deleted.
func (r *reader) create(ctx context.Context, inbox string, from uint64) error {
	req := consumerRequest{
		Stream: r.stream.name,
		Action: "create",
		Config: consumerConfig{
			Name:              r.name,
			DeliverSubject:    inbox,
			DeliverPolicy:     "by_start_sequence",
			OptStartSeq:       from,
			AckPolicy:         "none",
			ReplayPolicy:      "instant",
			MaxDeliver:        1,
			FlowControl:       true,
			Heartbeat:         r.heartbeat,
			InactiveThreshold: 30 * time.Second,
			Replicas:          1,
			MemoryStorage:     true,
		},
	}
	subject := "CONSUMER.CREATE." + r.stream.name + "." + r.name
	err := r.request(ctx, subject, req, nil)
	var api *APIError
	if errors.As(err, &api) && api.ErrCode == codeConsumerExists {
		if err := r.drop(ctx); err != nil {
			return err
		}
		err = r.request(ctx, subject, req, nil)
	}
	return err
}

func (r *reader) drop(ctx context.Context) error {
	err := r.request(ctx, "CONSUMER.DELETE."+r.stream.name+"."+r.name, nil, nil)
	var api *APIError
	if errors.As(err, &api) && api.ErrCode == codeConsumerNotFound {
		return nil
	}
	return err
}

// remove deletes the consumer. If that fails, the server deletes it after it had no subscriber for a while.
func (r *reader) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.drop(ctx)
}

type delivery struct {
	streamSeq, consumerSeq uint64
	nanos                  int64
}

// parseDelivery reads the reply subject of a consumer's message:
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>
//	$JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>[.<random>]
func parseDelivery(reply string) (d delivery, ok bool) {
	rest, ok := strings.CutPrefix(reply, "$JS.ACK.")
	if !ok {
		return d, false
	}
	skip := 3
	if n := strings.Count(rest, "."); n >= 8 {
		skip = 5
	} else if n != 6 {
		return d, false
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	if d.streamSeq, rest, ok = number(rest); !ok {
		return d, false
	}
	if d.consumerSeq, rest, ok = number(rest); !ok {
		return d, false
	}
	nanos, rest, ok := number(rest)
	if !ok {
		return d, false
	}
	d.nanos = int64(nanos)
	pending, _, _ := strings.Cut(rest, ".")
	_, err := strconv.ParseUint(pending, 10, 64)
	return d, err == nil
}

// number takes a decimal number and the dot behind it off the front of s.
func number(s string) (n uint64, rest string, ok bool) {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			n = n*10 + uint64(c-'0')
		case c == '.' && i > 0:
			return n, s[i+1:], true
		default:
			return 0, "", false
		}
	}
	return 0, "", false
}
