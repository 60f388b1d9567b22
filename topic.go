package carillon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

	Changed func(TopicQueueChange) // called if a queue that was there has been changed; may be nil
}

// TopicQueueChange says what of a topic queue did not fit the output streams any more, as after a change of the partitions. Each is a list
// of partitions.
type TopicQueueChange struct {
	Added []int // the queue lacked them
	Anew  []int // the queue had them, but would leave out what their streams, which were made after it, have first
}

func (c *TopicQueueChange) empty() bool { return len(c.Added)+len(c.Anew) == 0 }

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
// partitions; triggers of one partition keep their order. A queue that exists already is returned as it is, whatever the options say,
// unless it does not fit the output streams any more: then it takes in the partitions that it lacked, and those whose streams were made
// after it, from the start of their streams. The triggers in the queue stay, and so do sources whose streams are gone: they may come back.
//
// Errors: CodeInvalidTopic, also for a token such as $1 or {{wildcard(1)}}; CodeInvalidField for an option, or if a stream of that name
// holds something else; CodeNotFound when the service has no streams; nats.ErrPermissionViolation; the errors of jetstream's CreateStream
// and UpdateStream.
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
	created := make([]time.Time, len(outputs))
	for p, out := range outputs {
		created[p] = out.CachedInfo().Created
		source := c.source(p, topic)
		if !o.FromStart {
			source.OptStartSeq = out.CachedInfo().State.LastSeq + 1
		}
		config.Sources = append(config.Sources, source)
	}
	stream, err := asking(ctx, c, "STREAM.CREATE."+config.Name, func(ctx context.Context) (jetstream.Stream, error) {
		return js.CreateStream(ctx, config)
	})
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return stream, err
	}
	if stream, err = c.stream(ctx, js, config.Name); err != nil {
		return nil, err
	}
	have, ok := c.sourcesByPartition(stream.CachedInfo().Config, topic)
	if !ok {
		return nil, errField(CodeInvalidField, "topic", "the stream %s is there, but does not hold the triggers of %s", config.Name, topic)
	}
	change := outdated(have, stream.CachedInfo().Created, created)
	if change.empty() {
		return stream, nil
	}
	if stream, err = c.mend(ctx, js, stream.CachedInfo().Config, topic, have, change); err != nil {
		return nil, err
	}
	if o.Changed != nil {
		o.Changed(change)
	}
	return stream, nil
}

// source is a partition's source in a topic queue, from the start of its stream. The sequence is named, because nats-server would begin a
// source without one at the time of the queue's last message, once the queue has dropped its first.
func (c *Client) source(partition int, topic string) *jetstream.StreamSource {
	return &jetstream.StreamSource{
		Name:        c.names.OutStream(partition),
		OptStartSeq: 1,
		SubjectTransforms: []jetstream.SubjectTransformConfig{
			{Source: c.names.Trigger(partition, topic), Destination: c.names.TopicSubject(destinationOf(topic))},
		},
	}
}

// sourcesByPartition returns the sources of a topic queue by partition. It returns false if a stream has none, or others.
func (c *Client) sourcesByPartition(s jetstream.StreamConfig, topic string) (map[int]*jetstream.StreamSource, bool) {
	have := make(map[int]*jetstream.StreamSource)
	for _, from := range s.Sources {
		p, err := strconv.Atoi(from.Name[strings.LastIndexByte(from.Name, '_')+1:])
		if err != nil || p < 0 {
			return nil, false
		}
		if want := c.source(p, topic); from.Name != want.Name || !slices.Equal(from.SubjectTransforms, want.SubjectTransforms) {
			return nil, false
		}
		have[p] = from
	}
	return have, len(have) > 0
}

// outdated compares a topic queue's sources with the output streams, of which the times are. A source that begins behind the first sequence
// leaves out what was there before the queue. nats-server (2.15.2) begins there again when the stream is deleted and made anew.
func outdated(have map[int]*jetstream.StreamSource, made time.Time, outputs []time.Time) (change TopicQueueChange) {
	for p, created := range outputs {
		switch from := have[p]; {
		case from == nil:
			change.Added = append(change.Added, p)
		case from.OptStartSeq > 1 && created.After(made):
			change.Anew = append(change.Anew, p)
		}
	}
	return change
}

// mend changes a topic queue's sources. A source that is to begin anew is removed first: nats-server goes on with one whose start changes.
// When it is interrupted in between, the partitions are missing, and added the next time.
func (c *Client) mend(
	ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, topic string, have map[int]*jetstream.StreamSource, change TopicQueueChange,
) (jetstream.Stream, error) {
	update := func() (jetstream.Stream, error) {
		return asking(ctx, c, "STREAM.UPDATE."+config.Name, func(ctx context.Context) (jetstream.Stream, error) {
			return js.UpdateStream(ctx, config)
		})
	}
	for _, p := range change.Anew {
		delete(have, p)
	}
	for _, p := range change.Added {
		have[p] = c.source(p, topic)
	}
	if len(change.Anew) > 0 {
		config.Sources = slices.Collect(maps.Values(have))
		if len(have) == 0 { // a stream without sources would be no topic queue; of the partition after the last there is no stream
			config.Sources = append(config.Sources, c.source(len(change.Anew), topic))
		}
		if _, err := update(); err != nil {
			return nil, err
		}
	}
	for _, p := range change.Anew {
		have[p] = c.source(p, topic)
	}
	config.Sources = nil
	for _, p := range slices.Sorted(maps.Keys(have)) {
		config.Sources = append(config.Sources, have[p])
	}
	return update()
}

// DeleteTopicQueue removes a topic queue and the triggers in it. The output streams keep theirs.
//
// Errors: CodeInvalidTopic; CodeNotFound; CodeInvalidField if the stream of that name holds something else (the topics a.b and a_b
// have the same stream name); nats.ErrPermissionViolation; the errors of jetstream's DeleteStream.
func (c *Client) DeleteTopicQueue(ctx context.Context, topic string) error {
	if err := CheckTopicFilter(topic); err != nil {
		return err
	}
	js, err := c.jetStream()
	if err != nil {
		return err
	}
	name := c.names.TopicStream(topic)
	stream, err := c.stream(ctx, js, name)
	if err == nil && !c.sources(stream.CachedInfo().Config, topic) {
		return errField(CodeInvalidField, "topic", "the stream %s is there, but does not hold the triggers of %s", name, topic)
	}
	if err == nil {
		_, err = asking(ctx, c, "STREAM.DELETE."+name, func(ctx context.Context) (none struct{}, _ error) {
			return none, js.DeleteStream(ctx, name)
		})
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
// Errors: nats.ErrPermissionViolation; those of jetstream's ListStreams.
func (c *Client) TopicQueues(ctx context.Context) ([]*jetstream.StreamInfo, error) {
	return c.listStreams(ctx, c.names.TopicStream(""))
}

// OutdatedTopicQueues returns the topics of the queues that do not take in all of their triggers, because the service's partitions or
// output streams are others than when the queue was made. CreateTopicQueue of the topic mends that.
//
// Errors: nats.ErrPermissionViolation; those of jetstream's ListStreams.
func (c *Client) OutdatedTopicQueues(ctx context.Context) (topics []string, err error) {
	infos, err := c.listStreams(ctx, "")
	if err != nil {
		return nil, err
	}
	byName := make(map[string]*jetstream.StreamInfo)
	for _, info := range infos {
		byName[info.Config.Name] = info
	}
	var outputs []time.Time
	for out := byName[c.names.OutStream(0)]; out != nil; out = byName[c.names.OutStream(len(outputs))] {
		outputs = append(outputs, out.Created)
	}
	for _, info := range infos {
		if topic, ok := c.topicOf(info.Config); ok {
			have, _ := c.sourcesByPartition(info.Config, topic)
			if change := outdated(have, info.Created, outputs); !change.empty() {
				topics = append(topics, topic)
			}
		}
	}
	return topics, nil
}

// topicOf returns the topic of a topic queue.
func (c *Client) topicOf(s jetstream.StreamConfig) (topic string, ok bool) {
	if len(s.Sources) == 0 || len(s.Sources[0].SubjectTransforms) == 0 {
		return "", false
	}
	tokens := strings.SplitN(s.Sources[0].SubjectTransforms[0].Source, ".", 4) // carillon.trigger.<p>.<topic>
	topic = tokens[len(tokens)-1]
	if s.Name != c.names.TopicStream(topic) {
		return "", false
	}
	_, ok = c.sourcesByPartition(s, topic)
	return topic, ok
}

// listStreams returns the streams whose names begin with a prefix.
func (c *Client) listStreams(ctx context.Context, prefix string) (infos []*jetstream.StreamInfo, err error) {
	js, err := c.jetStream()
	if err != nil {
		return nil, err
	}
	ctx, forbidden := c.watchRights(ctx, jetstream.DefaultAPIPrefix+"STREAM.LIST")
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if strings.HasPrefix(info.Config.Name, prefix) {
			infos = append(infos, info)
		}
	}
	return infos, forbidden(list.Err())
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

// stream opens a stream.
func (c *Client) stream(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	return asking(ctx, c, "STREAM.INFO."+name, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, name) })
}

// asking asks JetStream on a subject of its API. Its error says so if the client lacks the right to.
func asking[T any](ctx context.Context, c *Client, api string, ask func(context.Context) (T, error)) (T, error) {
	ctx, forbidden := c.watchRights(ctx, jetstream.DefaultAPIPrefix+api)
	answer, err := ask(ctx)
	return answer, forbidden(err)
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
