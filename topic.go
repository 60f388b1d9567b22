package carillon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TopicQueueOptions says how a topic queue's stream is made. The zero value of each field is its default.
type TopicQueueOptions struct {
	FromStart bool                  // include the triggers that the output streams still hold
	MaxAge    time.Duration         // how long the queue keeps a trigger, at least a second; default 72 h
	MaxBytes  int64                 // size of the queue, which drops its oldest triggers beyond that; at least 1 MiB; default 1 GiB
	Storage   jetstream.StorageType // default file
	Replicas  int                   // 1 to 5; default as many as the output streams have
}

// leastQueueBytes is enough for any trigger: the largest takes half of it. A smaller queue would drop a large trigger at once.
const leastQueueBytes = 1 << 20

func (o TopicQueueOptions) withDefaults() TopicQueueOptions {
	o.MaxAge = cmp.Or(o.MaxAge, 72*time.Hour)
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<30)
	return o
}

// Validate checks the options. The error is an *Error of CodeInvalidField.
func (o TopicQueueOptions) Validate() error {
	switch {
	case o.MaxAge < 0 || o.MaxAge > 0 && o.MaxAge < time.Second:
		return errField(CodeInvalidField, "max_age", "is %s; expected a second or more", o.MaxAge)
	case o.MaxBytes < 0 || o.MaxBytes > 0 && o.MaxBytes < leastQueueBytes:
		return errField(CodeInvalidField, "max_bytes", "is %d; expected %d or more", o.MaxBytes, leastQueueBytes)
	case o.Replicas < 0 || o.Replicas > 5:
		return errField(CodeInvalidField, "replicas", "is %d; expected 1 to 5", o.Replicas)
	}
	return nil
}

// CreateTopicQueue makes one stream of all triggers of a topic, which may have wildcards, so that one consumer in any language can
// take them. The stream's name is Names.TopicStream, its subjects are Names.TopicSubject. It sources the output streams of all
// partitions; triggers of one partition keep their order. A queue that exists already is returned as it is, whatever the options say.
//
// Errors: CodeInvalidTopic, also for a token such as $1 or {{wildcard(1)}}; CodeInvalidField for an option, or if a stream of that name
// holds something else; CodeNotFound when the service has no streams; the errors of jetstream's CreateStream.
func (c *Client) CreateTopicQueue(ctx context.Context, topic string, o TopicQueueOptions) (jetstream.Stream, error) {
	if err := CheckTopicFilter(topic); err != nil {
		return nil, err
	}
	if err := checkDestination(topic); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	js, err := c.jetStream()
	if err != nil {
		return nil, err
	}
	outputs, err := c.outputs(ctx, js)
	if err != nil {
		return nil, err
	}
	config := jetstream.StreamConfig{
		Name:        c.names.TopicStream(topic),
		Description: "Carillon: the triggers of the topic " + topic,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     o.Storage,
		Replicas:    o.Replicas,
		MaxAge:      o.MaxAge,
		MaxBytes:    o.MaxBytes,
		Duplicates:  100 * time.Millisecond, // the least there is; nothing relies on it
		AllowDirect: true,
	}
	if config.Replicas == 0 {
		config.Replicas = outputs[0].CachedInfo().Config.Replicas
	}
	destination := c.names.TopicSubject(destinationOf(topic))
	for p, out := range outputs {
		source := &jetstream.StreamSource{
			Name:              c.names.OutStream(p),
			SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: c.names.Trigger(p, topic), Destination: destination}},
		}
		if !o.FromStart {
			source.OptStartSeq = out.CachedInfo().State.LastSeq + 1
		}
		config.Sources = append(config.Sources, source)
	}
	stream, err := js.CreateStream(ctx, config)
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return stream, err
	}
	if stream, err = js.Stream(ctx, config.Name); err != nil {
		return nil, err
	}
	if !sameSources(stream.CachedInfo().Config, config) {
		return nil, errField(CodeInvalidField, "topic", "the stream %s is there, but does not hold the triggers of %s", config.Name, topic)
	}
	return stream, nil
}

// DeleteTopicQueue removes a topic queue and the triggers in it. The output streams keep theirs.
//
// Errors: CodeInvalidTopic; CodeNotFound; CodeInvalidField if the stream of that name holds something else (the topics a.b and a_b
// have the same stream name); the errors of jetstream's DeleteStream.
func (c *Client) DeleteTopicQueue(ctx context.Context, topic string) error {
	if err := CheckTopicFilter(topic); err != nil {
		return err
	}
	js, err := c.jetStream()
	if err != nil {
		return err
	}
	name := c.names.TopicStream(topic)
	stream, err := js.Stream(ctx, name)
	if err == nil && !c.sources(stream.CachedInfo().Config, topic) {
		return errField(CodeInvalidField, "topic", "the stream %s is there, but does not hold the triggers of %s", name, topic)
	}
	if err == nil {
		err = js.DeleteStream(ctx, name)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return &Error{Code: CodeNotFound, Message: "there is no topic queue " + name}
	}
	return err
}

// sources tells whether a stream sources the triggers of a topic, of any number of partitions.
func (c *Client) sources(s jetstream.StreamConfig, topic string) bool {
	destination := c.names.TopicSubject(destinationOf(topic))
	return slices.ContainsFunc(s.Sources, func(from *jetstream.StreamSource) bool {
		return slices.ContainsFunc(from.SubjectTransforms, func(t jetstream.SubjectTransformConfig) bool { return t.Destination == destination })
	})
}

// TopicQueues returns the streams of all topic queues.
//
// Errors: those of jetstream's ListStreams.
func (c *Client) TopicQueues(ctx context.Context) ([]*jetstream.StreamInfo, error) {
	js, err := c.jetStream()
	if err != nil {
		return nil, err
	}
	var queues []*jetstream.StreamInfo
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if strings.HasPrefix(info.Config.Name, c.names.TopicStream("")) {
			queues = append(queues, info)
		}
	}
	return queues, list.Err()
}

// outputs opens the output streams and returns them by partition.
func (c *Client) outputs(ctx context.Context, js jetstream.JetStream) ([]jetstream.Stream, error) {
	var streams []jetstream.Stream
	for p := 0; ; p++ {
		s, err := c.stream(ctx, js, c.names.OutStream(p))
		switch {
		case err == nil:
			streams = append(streams, s)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, fmt.Errorf("carillon: stream %s: %w", c.names.OutStream(p), err)
		case p == 0:
			return nil, &Error{Code: CodeNotFound, Message: "there is no stream " + c.names.OutStream(0) + ": no Carillon service has run here under this prefix"}
		default:
			return streams, nil
		}
	}
}

// stream opens a stream. Its error says so if the client lacks the right to.
func (c *Client) stream(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	ctx, forbidden := c.watchRights(ctx, jetstream.DefaultAPIPrefix+"STREAM.INFO."+name)
	s, err := js.Stream(ctx, name)
	return s, forbidden(err)
}

// checkDestination refuses a topic with a token that nats-server replaces in a subject transform, because such a token cannot be
// escaped: the triggers would get another topic.
func checkDestination(topic string) error {
	for token := range strings.SplitSeq(topic, ".") {
		number, dollar := strings.CutPrefix(token, "$")
		_, err := strconv.Atoi(number)
		if dollar && err == nil || strings.HasPrefix(token, "{{") && strings.HasSuffix(token, "}}") {
			return errField(CodeInvalidTopic, "topic", "%s holds %s, which NATS replaces where it maps subjects; a queue with a wildcard in its place takes these triggers in",
				quote(topic), quote(token))
		}
	}
	return nil
}

// destinationOf returns the topic as the destination of a subject transform, in which its k-th * stands for the
// k-th wildcard of the source.
func destinationOf(topic string) string {
	tokens := strings.Split(topic, ".")
	k := 0
	for i, t := range tokens {
		if t == "*" {
			k++
			tokens[i] = "{{wildcard(" + strconv.Itoa(k) + ")}}"
		}
	}
	return strings.Join(tokens, ".")
}

// sameSources tells whether two streams source the same subjects of the same streams, wherever in those they began.
func sameSources(a, b jetstream.StreamConfig) bool {
	if len(a.Sources) != len(b.Sources) {
		return false
	}
	from := make(map[string]jetstream.SubjectTransformConfig)
	for _, s := range a.Sources {
		if len(s.SubjectTransforms) == 1 {
			from[s.Name] = s.SubjectTransforms[0]
		}
	}
	for _, s := range b.Sources {
		if from[s.Name] != s.SubjectTransforms[0] {
			return false
		}
	}
	return true
}
