package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one message of a stream.
type Message struct {
	Seq     uint64
	Time    time.Time // when the stream took it, to the nanosecond, UTC
	Subject string    // as it is stored, after the transform
	Header  nats.Header
	Data    []byte
}

// Position is where the message stands in its stream.
func (m *Message) Position() Position { return Position{Seq: m.Seq, Time: m.Time} }

// Info is what a stream holds. An emptied stream has First = Last + 1, a new one 0 and 0.
type Info struct {
	First, Last uint64
	Messages    uint64
	Bytes       uint64
	MaxBytes    int64         // -1: no limit
	MaxAge      time.Duration // 0: no limit
	Replicas    int
	Leader      Leader // that answered for all of them; none where there is no cluster
	LastTime    time.Time
	Now         time.Time // by the clock that stamps the stream's messages
	Wrong       string    // what somebody has edited since Open so that it would be refused now
}

// Leader is a server that leads a stream, and since when.
type Leader struct {
	Name  string
	Since string // by its own clock, as it writes it; empty where it does not say
}

// Same tells whether l still leads as o did. One that was elected again answers nothing that came to it in between.
func (l Leader) Same(o Leader) bool {
	return l.Name == o.Name && (l.Since == o.Since || l.Since == "" || o.Since == "")
}

// before is the sequence below which the stream has nothing, that included.
func (i *Info) before() uint64 { return i.First - min(i.First, 1) }

// stream is what the log and the output streams have in common: requests about one stream.
type stream struct {
	nc   *nats.Conn
	name string
	want *jetstream.StreamConfig // how it must be, nil: in whatever way
}

// Name is the stream's.
func (s *stream) Name() string { return s.name }

// request asks the JetStream API and decodes the answer into resp, or its error. It may be carried out more than once.
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

// askAgain is how long an answer is waited for before the question is asked again beside the first, and beside the others:
// whoever waits for a leader is to know of it soon after there is one.
const askAgain = 250 * time.Millisecond

// ask sends a request until one answer has come. One that is sent while there is no leader, or to one that dies, is lost
// without a word: who waited for it would wait on when the next leader has long been there.
func (s *stream) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
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
		again := time.NewTimer(askAgain)
		select {
		case a := <-answers:
			again.Stop()
			return a.m, a.err
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-again.C:
		}
	}
}

// group is what the answer about a stream in a cluster says of its replicas.
type group struct {
	Leader   string `json:"leader"`
	Since    string `json:"leader_since"`
	Replicas []struct {
		Name   string        `json:"name"`
		Active time.Duration `json:"active"` // since the leader heard of it; 0: it never did
	} `json:"replicas"` // all others
}

// heard is the longest that a leader's word counts without one of most replicas: a follower that hears nothing elects another
// after four seconds at the earliest, and an idle leader asks them every other second (server/raft.go). A follower that does
// hear it votes for another all the same, so for as long as this a leader may be one that no longer is.
const heard = 3 * time.Second

// Doubt is how long what a stream with replicas says against a node has to be said before it counts: twice as long as a
// leader that is none any more may be believed.
const Doubt = 2 * heard

// LeaderOf names the server that leads a stream, and those that follow it. Errors: as Info's.
func (s *Streams) LeaderOf(ctx context.Context, name string) (leader string, followers []string, err error) {
	return LeaderBy(ctx, s.Log.nc, name)
}

// LeaderBy is the same, asked by way of another connection.
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

// StepDown asks the leader of a stream, by way of a connection to it, to leave that to another server. Asked twice it does so
// once: who leads already refuses. It does not wait for that.
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

// leads tells whether most replicas follow the one that answered. Where a group has no leader each replica answers with
// what it has (server/jetstream_api.go, jsStreamInfoRequest), and a leader that is cut off from the others knows of that
// after ten seconds and more: both may lack what has long been acknowledged.
func (g *group) leads() bool {
	if g == nil { // no cluster
		return true
	}
	follow := 1
	for _, r := range g.Replicas {
		if r.Name == g.Leader { // it learned of a leader while it answered in place of one
			return false
		}
		if r.Active > 0 && r.Active < heard {
			follow++
		}
	}
	return g.Leader != "" && follow > (len(g.Replicas)+1)/2
}

// Info asks what the stream holds: all that was acknowledged before, at least. Errors: ErrNoStream, ErrDisconnected, also
// while there is no leader, the context's.
func (s *stream) Info(ctx context.Context) (Info, error) {
	info, _, err := s.info(ctx, false)
	return info, err
}

// info tells as well, if asked, which messages between the first and the last are gone, ascending.
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
		wrong = misshapen(&resp.Config, s.want)
	}
	return Info{
		First: st.First, Last: st.Last, Messages: st.Messages, Bytes: st.Bytes,
		MaxBytes: resp.Config.MaxBytes, MaxAge: resp.Config.MaxAge, Replicas: resp.Config.Replicas, Leader: leader, LastTime: st.LastTime, Now: resp.Now, Wrong: wrong,
	}, st.Deleted, nil
}

// gaps is what a stream had and has no more.
type gaps struct {
	first, last uint64
	deleted     []uint64 // between the two, ascending
}

func (s *stream) gaps(ctx context.Context) (*gaps, error) {
	info, deleted, err := s.info(ctx, true)
	if err != nil {
		return nil, err
	}
	// The list ends with the newest existing message (server/filestore.go, State); a power failure may take those behind.
	for seq := info.First + info.Messages + uint64(len(deleted)); seq <= info.Last; seq++ {
		deleted = append(deleted, seq)
	}
	return &gaps{first: info.First, last: info.Last, deleted: deleted}, nil
}

func (g *gaps) has(seq uint64) bool {
	_, deleted := slices.BinarySearch(g.deleted, seq)
	return seq < g.first || deleted
}

// Get reads one message. Errors: ErrNotFound when it is gone or the stream does not reach that far, ErrNoStream,
// ErrDisconnected, the context's.
//
// It asks the API, where the stream's leader answers, which knows when a message is gone. A direct get stands in for it only
// while nobody answers there.
func (s *stream) Get(ctx context.Context, seq uint64) (Message, error) {
	if seq == 0 { // to the API it means "no sequence given"
		return Message{}, ErrNotFound
	}
	m, err := s.get(ctx, messageRequest{Seq: seq})
	if !errors.Is(err, ErrNotFound) {
		return m, err
	}
	// A leader that is cut off says so of what has been stored since.
	gone, failed := s.gaps(ctx)
	switch {
	case failed != nil:
		return Message{}, failed
	case seq <= gone.last && !gone.has(seq):
		return Message{}, fmt.Errorf("%w: the leader of %s has message %d, another server that answered has not", ErrDisconnected, s.name, seq)
	}
	return Message{}, err
}

// messageRequest asks for one message, in one of these ways.
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
		if m, err := s.direct(ctx, req.Seq); err == nil {
			return m, nil
		}
	}
	if err != nil {
		return Message{}, err
	}
	m := resp.Message
	out := Message{Seq: m.Seq, Time: m.Time, Subject: m.Subject, Data: m.Data}
	if h, err := nats.DecodeHeadersMsg(m.Header); err == nil {
		out.Header = h // nats-server stores any bytes as headers; a reader gets none of those either
	}
	return out, nil
}

// direct gets one message from any of the replicas. While JetStream has no leader of all servers the API gives none, though the
// stream may have a leader and take more (server/jetstream_api.go, jsMsgGetRequest). What a replica has is what was agreed
// on; what it has not may only not have come to it yet, so that is no answer.
func (s *stream) direct(ctx context.Context, seq uint64) (Message, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	body, err := json.Marshal(messageRequest{Seq: seq})
	if err != nil {
		return Message{}, err
	}
	m, err := s.ask(ctx, apiPrefix+directGet+s.name, body)
	if err != nil {
		return Message{}, fmt.Errorf("streams: %s%s: %w", directGet, s.name, sendError(err))
	}
	return directMessage(m)
}

// directMessage takes what the server wrote into the headers of a message out of them. It wrote that behind the message's own.
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
	if status := m.Header.Get("Status"); status != "" && m.Header.Get(nats.JSSequence) == "" {
		return Message{}, fmt.Errorf("streams: a direct get: %s %s", status, m.Header.Get("Description"))
	}
	take(nats.JSStream)
	out := Message{Subject: take(nats.JSSubject), Data: m.Data}
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
