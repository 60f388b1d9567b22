package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one message of a stream.
type Message struct {
	Seq     uint64
	Time    time.Time // when the stream took it, to the nanosecond, UTC
	Subject string    // as it is stored, after the transform (subjectOf)
	Header  nats.Header
	Data    []byte
}

// subjectOf is a stored subject as all ways to read a message give it. nats-server takes any bytes. A consumer sends them as they are, and an
// answer in JSON has U+FFFD for each that is not of UTF-8; nodes that read a record in different ways must apply the same.
func subjectOf(stored string) string {
	if utf8.ValidString(stored) {
		return stored
	}
	return string([]rune(stored))
}

// Position is the message's position in its stream.
func (m *Message) Position() Position { return Position{Seq: m.Seq, Time: m.Time} }

// Info is what a stream holds. An emptied stream has First = Last + 1, a new one 0 and 0.
type Info struct {
	First, Last uint64
	Messages    uint64
	Bytes       uint64
	MaxBytes    int64         // -1: no limit
	MaxMessages int64         // -1: no limit
	MaxAge      time.Duration // 0: no limit
	Replicas    int
	Leader      Leader // that answered; zero if there is no cluster
	LastTime    time.Time
	Now         time.Time // by the clock that stamps the stream's messages
	Mismatch    string    // why Open would refuse the stream now, because somebody edited it; else ""
}

// Leader is a server that leads a stream, and since when.
type Leader struct {
	Name  string
	Since string // by its own clock and in its own form; "" if it does not say
}

// Same tells whether l and o are one term of one leader. A leader that lost and won an election in between answers nothing that came
// to it meanwhile.
func (l Leader) Same(o Leader) bool {
	return l.Name == o.Name && (l.Since == o.Since || l.Since == "" || o.Since == "")
}

// Gone is how many messages between the first and the last are gone, those at the end included; 0 if the stream has none at all.
func (i *Info) Gone() uint64 {
	if i.Messages == 0 {
		return 0
	}
	return i.Last + 1 - i.First - i.Messages
}

// before is the greatest sequence up to which the stream has nothing.
func (i *Info) before() uint64 { return i.First - min(i.First, 1) }

// stream is what the log and the output streams have in common: requests about one stream.
type stream struct {
	nc   *nats.Conn
	name string
	want *jetstream.StreamConfig // how it must be configured; nil: it does not matter
}

// Name is the stream's name.
func (s *stream) Name() string { return s.name }

// request sends a request to the JetStream API, and decodes the answer into resp or returns the error in it. The server may carry
// the request out more than once (ask).
func (s *stream) request(ctx context.Context, subject string, req, resp any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return fmt.Errorf("streams: %s: %w", subject, err)
		}
	}
	m, err := s.ask(ctx, apiPrefix+subject, body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: JetStream does not answer", ErrDisconnected)
	case err != nil:
		return fmt.Errorf("streams: %s: %w", subject, sendError(err))
	}
	var failed struct {
		Error *APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("streams: %s: answer: %w", subject, err)
	}
	if failed.Error != nil {
		return failed.Error.class()
	}
	if resp == nil {
		return nil
	}
	if err := json.Unmarshal(m.Data, resp); err != nil {
		return fmt.Errorf("streams: %s: answer: %w", subject, err)
	}
	return nil
}

// askAgain is how often a request is sent again until there is an answer, so that a caller who waits for a leader hears of one
// soon.
const askAgain = 250 * time.Millisecond

// ask sends a request again and again until there is an answer. A request that is sent while there is no leader, or to one that dies,
// is silently lost; without another, the caller would still wait when the next leader has long been there.
func (s *stream) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	return s.askUntil(ctx, subject, body, askAgain, func(*nats.Msg) bool { return true })
}

// askUntil sends a request again and again until there is an answer that is accepted: at once after one that is not, and else after a pause,
// which doubles until it is askAgain.
func (s *stream) askUntil(ctx context.Context, subject string, body []byte, pause time.Duration, accept func(*nats.Msg) bool) (*nats.Msg, error) {
	type answer struct {
		m   *nats.Msg
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	for {
		go func() {
			m, err := s.nc.RequestWithContext(ctx, subject, body)
			select {
			case answers <- answer{m, err}:
			case <-ctx.Done():
			}
		}()
		again := time.NewTimer(pause)
		select {
		case a := <-answers:
			again.Stop()
			if a.err != nil || accept(a.m) {
				return a.m, a.err
			}
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-again.C:
			pause = min(2*pause, askAgain)
		}
	}
}

// group is the part of the answer about a stream in a cluster that is about its replicas.
type group struct {
	Leader   string `json:"leader"`
	Since    string `json:"leader_since"`
	Replicas []struct {
		Name   string        `json:"name"`
		Active time.Duration `json:"active"` // since the leader last heard from it; 0: it never did
	} `json:"replicas"` // all but the one that answered
}

// heardWithin is how recently a leader must have heard from most replicas for its answer to count. A follower that hears nothing from the
// leader has another elected after four seconds at the earliest, and an idle leader asks its followers every other second
// (server/raft.go). But a follower that still hears the leader may vote for another, too. So for as long as this a server may
// be believed that no longer leads.
const heardWithin = 3 * time.Second

// ConfirmTime is how long a stream with replicas must say again and again what makes it, or a node, unusable before that counts: twice as
// long as a former leader may be believed.
const ConfirmTime = 2 * heardWithin

// LeaderOf names the server that leads a stream, and those that follow it. Errors: Info's.
func (s *Streams) LeaderOf(ctx context.Context, name string) (leader string, followers []string, err error) {
	return LeaderBy(ctx, s.Log.nc, name)
}

// LeaderBy is LeaderOf by way of another connection.
func LeaderBy(ctx context.Context, nc *nats.Conn, name string) (leader string, followers []string, err error) {
	one := stream{nc: nc, name: name}
	var resp struct {
		Cluster *group `json:"cluster"`
	}
	if err := one.request(ctx, "STREAM.INFO."+name, nil, &resp); err != nil {
		return "", nil, err
	}
	if resp.Cluster == nil {
		return "", nil, nil
	}
	if !resp.Cluster.leads() {
		return "", nil, fmt.Errorf("%w: %s has no leader whom its replicas follow", ErrDisconnected, name)
	}
	for _, r := range resp.Cluster.Replicas {
		followers = append(followers, r.Name)
	}
	return resp.Cluster.Leader, followers, nil
}

// StepDown asks the leader of a stream, over a connection to that server, to hand leadership over to another one. It does not wait
// for that. To ask twice does no harm: a server that leads already refuses.
func StepDown(nc *nats.Conn, name, to string) error {
	var req struct {
		Placement struct {
			Preferred string `json:"preferred"`
		} `json:"placement"`
	}
	req.Placement.Preferred = to
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	return sendError(nc.Publish(apiPrefix+stepDown+name, body))
}

// leads tells whether the server that answered is a leader that most replicas follow. If a group has no leader, each replica answers
// with what it has (server/jetstream_api.go, jsStreamInfoRequest); and a leader that is cut off from the others notices that only
// after ten seconds or more. Both may lack what has long been acknowledged.
func (g *group) leads() bool {
	if g == nil { // no cluster
		return true
	}
	follow := 1
	for _, r := range g.Replicas {
		if r.Name == g.Leader { // another one leads: there was no leader when this one began to answer
			return false
		}
		if r.Active > 0 && r.Active < heardWithin {
			follow++
		}
	}
	return g.Leader != "" && follow > (len(g.Replicas)+1)/2
}

// Info asks what the stream holds. The answer includes at least everything that was acknowledged before the call. Errors: ErrNoStream;
// ErrDisconnected, also while there is no leader; the context's.
func (s *stream) Info(ctx context.Context) (Info, error) {
	info, _, err := s.info(ctx, false)
	return info, err
}

// info is Info, and with deletes also returns which messages between the first and the last are gone, ascending.
func (s *stream) info(ctx context.Context, deletes bool) (info Info, deleted []uint64, err error) {
	var req any
	if deletes {
		req = struct {
			Deletes bool `json:"deleted_details"`
		}{true}
	}
	var resp struct {
		Cluster *group `json:"cluster"`

		Now    time.Time              `json:"ts"`
		Config jetstream.StreamConfig `json:"config"`
		State  struct {
			Messages uint64    `json:"messages"`
			Bytes    uint64    `json:"bytes"`
			First    uint64    `json:"first_seq"`
			Last     uint64    `json:"last_seq"`
			LastTime time.Time `json:"last_ts"`
			Deleted  []uint64  `json:"deleted"`
		} `json:"state"`
	}
	if err := s.request(ctx, "STREAM.INFO."+s.name, req, &resp); err != nil {
		return Info{}, nil, err
	}
	if !resp.Cluster.leads() {
		return Info{}, nil, fmt.Errorf("%w: %s has no leader whom its replicas follow", ErrDisconnected, s.name)
	}
	st, leader := resp.State, Leader{}
	if resp.Cluster != nil {
		leader = Leader{resp.Cluster.Leader, resp.Cluster.Since}
	}
	wrong := ""
	if s.want != nil {
		wrong = mismatch(&resp.Config, s.want)
	}
	return Info{
		First: st.First, Last: st.Last, Messages: st.Messages, Bytes: st.Bytes,
		MaxBytes: resp.Config.MaxBytes, MaxMessages: resp.Config.MaxMsgs, MaxAge: resp.Config.MaxAge,
		Replicas: resp.Config.Replicas, Leader: leader, LastTime: st.LastTime, Now: resp.Now, Mismatch: wrong,
	}, st.Deleted, nil
}

// gaps says which messages a stream had and no longer has.
type gaps struct {
	first, last uint64
	deleted     []uint64 // between the two, ascending
}

func (s *stream) gaps(ctx context.Context) (*gaps, error) {
	info, deleted, err := s.info(ctx, true)
	if err != nil {
		return nil, err
	}
	// The server's list ends with the newest existing message (server/filestore.go, State). After a power failure messages behind that
	// may be gone, too.
	for seq := info.First + info.Messages + uint64(len(deleted)); seq <= info.Last; seq++ {
		deleted = append(deleted, seq)
	}
	return &gaps{first: info.First, last: info.Last, deleted: deleted}, nil
}

func (g *gaps) has(seq uint64) bool {
	_, deleted := slices.BinarySearch(g.deleted, seq)
	return seq < g.first || deleted
}

// Get reads one message. Errors: ErrNotFound if it is gone or the stream does not reach that far, ErrNoStream,
// ErrDisconnected, the context's.
//
// It asks the API, where the stream's leader answers, which knows whether a message is gone. A direct get is used only
// while nobody answers there.
func (s *stream) Get(ctx context.Context, seq uint64) (Message, error) {
	if seq == 0 { // to the API it means "no sequence given"
		return Message{}, ErrNotFound
	}
	m, err := s.get(ctx, messageRequest{Seq: seq})
	if !errors.Is(err, ErrNotFound) {
		return m, err
	}
	// A leader that is cut off says "not found", too, of what has been stored since.
	gone, failed := s.gaps(ctx)
	switch {
	case failed != nil:
		return Message{}, failed
	case seq <= gone.last && !gone.has(seq):
		return Message{}, fmt.Errorf("%w: the leader of %s has message %d, another server that answered has not", ErrDisconnected, s.name, seq)
	}
	return Message{}, err
}

// messageRequest asks for one message, by one of these.
type messageRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

func (s *stream) get(ctx context.Context, req messageRequest) (Message, error) {
	var resp struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Time    time.Time `json:"time"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
		} `json:"message"`
	}
	err := s.request(ctx, "STREAM.MSG.GET."+s.name, req, &resp)
	if errors.Is(err, ErrDisconnected) && req.Seq > 0 {
		m, failed := s.direct(ctx, req.Seq)
		if failed == nil {
			return m, nil
		}
		err = fmt.Errorf("%w; %v", err, failed) // %v: what a replica says is no answer of the stream
	}
	if err != nil {
		return Message{}, err
	}
	m := resp.Message
	out := Message{Seq: m.Seq, Time: m.Time, Subject: m.Subject, Data: m.Data}
	if h, err := nats.DecodeHeadersMsg(m.Header); err == nil {
		out.Header = h // nats-server stores any bytes as headers; malformed ones are dropped, as they are for a consumer's reader
	}
	return out, nil
}

// direct gets one message from any of the replicas. While JetStream's servers have no leader, the API gives no messages, although the
// stream may have a leader and store more (server/jetstream_api.go, jsMsgGetRequest). What a replica has was agreed on by the group.
// What it does not have may not have reached it yet, so that is an error other than ErrNotFound.
//
// nats-server sends each request to a random replica, also to one that is behind, and, until it notices, to one that is out of reach. If only
// one was asked in a quarter of a second, the log could not be read as fast as it grows.
func (s *stream) direct(ctx context.Context, seq uint64) (Message, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	body, err := json.Marshal(messageRequest{Seq: seq})
	if err != nil {
		return Message{}, err
	}
	answers := 0
	m, err := s.askUntil(ctx, apiPrefix+directGet+s.name, body, directAgain, func(m *nats.Msg) bool {
		answers++
		return !lacksMessage(m) || answers == directTries
	})
	if err != nil {
		return Message{}, fmt.Errorf("streams: %s%s: %w", directGet, s.name, sendError(err))
	}
	return directMessage(m)
}

// lacksMessage tells whether the answer to a direct get is that there is no such message.
func lacksMessage(m *nats.Msg) bool {
	return m.Header.Get("Status") != "" && m.Header.Get(nats.JSSequence) == ""
}

// directMessage makes a Message of the answer to a direct get. It takes out the headers that the server added; these are behind the
// message's own, which may have the same names.
func directMessage(m *nats.Msg) (Message, error) {
	take := func(key string) (value string) {
		if values := m.Header[key]; len(values) > 1 {
			value, m.Header[key] = values[len(values)-1], values[:len(values)-1]
		} else {
			value = m.Header.Get(key)
			delete(m.Header, key)
		}
		return value
	}
	if lacksMessage(m) {
		return Message{}, fmt.Errorf("streams: a direct get: %s %s", m.Header.Get("Status"), m.Header.Get("Description"))
	}
	take(nats.JSStream)
	out := Message{Subject: subjectOf(take(nats.JSSubject)), Data: m.Data}
	number, at := take(nats.JSSequence), take(nats.JSTimeStamp)
	var err, badTime error
	out.Seq, err = strconv.ParseUint(number, 10, 64)
	out.Time, badTime = time.Parse(time.RFC3339Nano, at)
	if len(m.Header) > 0 {
		out.Header = m.Header
	}
	return out, errors.Join(err, badTime)
}

// purge removes every message below seq. Beyond the last sequence it also raises that to seq - 1
// (server/filestore.go, compact and purgeLocked).
func (s *stream) purge(ctx context.Context, seq uint64) error {
	req := struct {
		Seq uint64 `json:"seq"`
	}{seq}
	return s.request(ctx, "STREAM.PURGE."+s.name, req, nil)
}
