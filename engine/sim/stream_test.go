package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestStreamModel runs scripts of operations on the model and on a real server's file stream. They agree
// in sequences, refusals, and in what is there.
func TestStreamModel(t *testing.T) {
	dir := t.TempDir()
	r := newReal(t, dir)
	const scripts, steps = 20, 120
	for script := range uint64(scripts) {
		r.create(fmt.Sprintf("S%d", script))
		model := &Stream{}
		rng := rand.New(rand.NewPCG(script, 0))
		for step := range steps {
			op := ""
			var want, got string
			switch d := rng.IntN(100); {
			case d < 60:
				m := Message{Subject: "s", ID: fmt.Sprintf("%d.%d", script, step)}
				var e Expectation
				if d < 45 {
					e = Expectation{Seq: model.Last() - min(model.Last(), rng.Uint64N(8)/6), OnSeq: true}
				}
				if d < 25 {
					e.ID = model.lastID
					if rng.IntN(5) == 0 {
						e.ID = "0.0"
					}
				}
				if rng.IntN(6) == 0 {
					m.ID = ""
				}
				op = fmt.Sprintf("publish %q %+v", m.ID, e)
				seq, err := model.Publish(m, e)
				want = answerText(seq, err)
				got = answerText(r.publish(m, e))
			case d < 75 && model.Last() > 0:
				seq := 1 + rng.Uint64N(model.Last()+4)
				op = fmt.Sprintf("purge below %d", seq)
				model.Purge(seq)
				r.must(r.stream.Purge(t.Context(), jetstream.WithPurgeSequence(seq)))
			case d < 88 && model.Last() > 0:
				seq := 1 + rng.Uint64N(model.Last())
				op = fmt.Sprintf("delete %d", seq)
				want = fmt.Sprint(model.Delete(seq))
				err := r.stream.DeleteMsg(t.Context(), seq)
				got = fmt.Sprint(err == nil)
			case d < 93 && model.Last() > 0:
				op = "empty"
				model.Purge(model.Last() + 1)
				r.must(r.stream.Purge(t.Context()))
			case d < 96:
				op = "restart"
				model.Restart()
				r.restart(t)
			default:
				continue
			}
			if want != got {
				t.Fatalf("script %d, step %d: %s: the model says %q, the server %q", script, step, op, want, got)
			}
			if want, got := stateText(model), r.state(model.Last()); want != got {
				t.Fatalf("script %d, step %d: after %s the model has %s, the server %s", script, step, op, want, got)
			}
		}
	}
}

func answerText(seq uint64, err error) string {
	var wrong *WrongSequence
	var id *WrongID
	switch {
	case errors.As(err, &wrong), errors.As(err, &id):
		return err.Error()
	case err != nil:
		return "unexpected: " + err.Error()
	}
	return strconv.FormatUint(seq, 10)
}

func stateText(s *Stream) string {
	text := fmt.Sprintf("%d..%d:", s.First(), s.Last())
	for _, m := range s.messages {
		text += fmt.Sprintf(" %d", m.Seq)
	}
	return text
}

// real is a stream of an embedded server.
type real struct {
	t      *testing.T
	dir    string
	server *server.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
}

func newReal(t *testing.T, dir string) *real {
	r := &real{t: t, dir: dir}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *real) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *real) start() {
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: r.dir, DontListen: true, NoSigs: true})
	r.must(err)
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		r.t.Fatal("the server does not start")
	}
	r.server = s
	r.nc, err = nats.Connect("", nats.InProcessServer(s))
	r.must(err)
	r.js, err = jetstream.New(r.nc)
	r.must(err)
}

func (r *real) stop() {
	r.nc.Close()
	r.server.Shutdown()
	r.server.WaitForShutdown()
}

func (r *real) create(name string) {
	var err error
	r.stream, err = r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Duplicates: 100 * time.Millisecond})
	r.must(err)
}

func (r *real) restart(t *testing.T) {
	name := r.stream.CachedInfo().Config.Name
	r.stop()
	r.start()
	var err error
	r.stream, err = r.js.Stream(t.Context(), name)
	r.must(err)
}

func (r *real) publish(m Message, e Expectation) (uint64, error) {
	msg := nats.NewMsg(r.stream.CachedInfo().Config.Name)
	if m.ID != "" {
		msg.Header.Set("Nats-Msg-Id", m.ID)
	}
	if e.OnSeq {
		msg.Header.Set("Nats-Expected-Last-Sequence", strconv.FormatUint(e.Seq, 10))
	}
	if e.ID != "" {
		msg.Header.Set("Nats-Expected-Last-Msg-Id", e.ID)
	}
	ack, err := r.js.PublishMsg(r.t.Context(), msg)
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case 10071:
			var last uint64
			if _, err := fmt.Sscanf(api.Description, "wrong last sequence: %d", &last); err != nil {
				return 0, err
			}
			return 0, &WrongSequence{last}
		case 10070:
			var last string
			_, _ = fmt.Sscanf(api.Description, "wrong last msg ID: %s", &last) // an empty id reads as nothing
			return 0, &WrongID{last}
		}
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

func (r *real) state(last uint64) string {
	info, err := r.stream.Info(r.t.Context())
	r.must(err)
	text := fmt.Sprintf("%d..%d:", info.State.FirstSeq, info.State.LastSeq)
	for seq := uint64(1); seq <= last; seq++ {
		if _, err := r.stream.GetMsg(r.t.Context(), seq); err == nil {
			text += fmt.Sprintf(" %d", seq)
		} else if !errors.Is(err, jetstream.ErrMsgNotFound) {
			r.t.Fatal(err)
		}
	}
	return text
}
