package carillon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// service answers requests by a script, so that answers can be lost, late and wrong.
type service struct {
	t  *testing.T
	mu sync.Mutex
	// script has, for each subject, the answers to come, the last of which stays.
	script map[string][]answer
	asked  map[string][]*nats.Msg
}

// answer is a body, or an error, or with neither no answer at all.
type answer struct {
	body    []byte
	refusal *Error
}

func startService(t *testing.T, nc *nats.Conn) *service {
	t.Helper()
	s := &service{t: t, script: make(map[string][]answer), asked: make(map[string][]*nats.Msg)}
	if _, err := nc.Subscribe("carillon.api.>", s.serve); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *service) serve(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[m.Subject] = append(s.asked[m.Subject], m)
	answers := s.script[m.Subject]
	if len(answers) == 0 {
		s.t.Errorf("unexpected request %s", m.Subject)
		return
	}
	if len(answers) > 1 {
		s.script[m.Subject] = answers[1:]
	}
	reply := nats.NewMsg(m.Reply)
	switch a := answers[0]; {
	case a.refusal != nil:
		reply.Header.Set("Nats-Service-Error", string(a.refusal.Code))
		reply.Header.Set(headerServiceErrorCode, strconv.Itoa(a.refusal.Code.Status()))
		reply.Data = a.refusal.AppendJSON(nil)
	case a.body != nil:
		reply.Data = a.body
	default:
		return
	}
	if err := m.RespondMsg(reply); err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // else the test is over
		s.t.Error(err)
	}
}

func (s *service) answers(subject string, a ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script[subject] = a
}

func (s *service) requests(subject string) []*nats.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked[subject])
}

func TestClientPut(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(9*time.Second)) // 3 s a try
	job := Job{ID: "renew-1", Schedule: "@every 1m", Payload: []byte("{\"a\":\n 1}"), Headers: map[string]string{"Tenant": "acme"}}
	spec := job
	spec.Form = PayloadJSON
	want := JobReply{ID: "renew-1", Version: 2, Status: StatusScheduled, Next: time.UnixMilli(1_900_000_000_000).UTC(), Fires: 4, Partition: 5, Spec: spec}

	unavailable := answer{refusal: &Error{Code: CodeUnavailable, Message: "restarting"}}
	s.answers("carillon.api.put.renew-1", unavailable, answer{}, answer{body: want.AppendJSON(nil)})
	got, err := c.Put(t.Context(), job, IfVersion(1), RequestID(""))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	requests := s.requests("carillon.api.put.renew-1")
	if len(requests) != 3 {
		t.Fatalf("%d tries; want 3", len(requests))
	}
	for _, m := range requests {
		if id := m.Header.Get(HeaderRequest); id == "" || id != requests[0].Header.Get(HeaderRequest) {
			t.Errorf("%s is %q; every try has the same", HeaderRequest, id)
		}
		body := `{"schedule":"@every 1m","payload":{"a":` + "\n" + ` 1},"headers":{"Tenant":"acme"},"if_version":1}`
		if string(m.Data) != body {
			t.Errorf("body %s; want %s", m.Data, body)
		}
	}

	s.answers("carillon.api.put.renew-1", answer{refusal: &Error{Code: CodeVersionConflict, Field: "if_version", Message: "job is at version 7"}})
	_, err = c.Put(t.Context(), job, IfVersion(0), RequestID("mine"))
	if e := AsError(err); e == nil || *e != (Error{CodeVersionConflict, "if_version", "job is at version 7"}) {
		t.Errorf("%v", err)
	}
	requests = s.requests("carillon.api.put.renew-1")
	if len(requests) != 4 || requests[3].Header.Get(HeaderRequest) != "mine" {
		t.Errorf("%d tries, the last one named %q", len(requests), requests[3].Header.Get(HeaderRequest))
	}

	// What is wrong by itself is not sent.
	for _, bad := range []struct {
		job  Job
		code Code
	}{{Job{}, CodeInvalidJobID}, {Job{ID: "a.b"}, CodeInvalidJobID}, {Job{ID: "x", Topic: "a b"}, CodeInvalidTopic}} {
		if _, err := c.Put(t.Context(), bad.job); !errors.Is(err, &Error{Code: bad.code}) {
			t.Errorf("%v; want %s", err, bad.code)
		}
	}
}

// No two commands have one name, be they of one client or of two; a client's begin alike, since a service keeps that once.
func TestCommandsAreNamed(t *testing.T) {
	seen := make(map[string]bool)
	for range 2 {
		c := Connect(nil)
		for range 100 {
			name := c.newRequest()
			if seen[name] {
				t.Fatalf("%s is the name of two commands", name)
			}
			seen[name] = true
			if !strings.HasPrefix(name, c.name+"-") {
				t.Errorf("%s does not begin with the client's name %s", name, c.name)
			}
		}
	}
}

// A timeout of zero stands for the default.
func TestTimeoutOfZero(t *testing.T) {
	if c := Connect(nil, WithTimeout(0)); c.timeout != DefaultTimeout {
		t.Errorf("it is %s; want %s", c.timeout, DefaultTimeout)
	}
}

func TestClientVerbs(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(time.Minute))
	job := JobReply{ID: "j", Version: 1, Status: StatusPaused, LastScheduled: time.UnixMilli(7).UTC(), Skipped: 9, Trigger: "j!44", Spec: Job{ID: "j"}}
	notFound := answer{refusal: &Error{Code: CodeNotFound, Message: `there is no job "j"`}}
	ok := answer{body: job.AppendJSON(nil)}

	for verb, call := range map[Verb]func() (JobReply, error){
		VerbGet:    func() (JobReply, error) { return c.Get(t.Context(), "j") },
		VerbPause:  func() (JobReply, error) { return c.Pause(t.Context(), "j") },
		VerbResume: func() (JobReply, error) { return c.Resume(t.Context(), "j", IfVersion(1)) },
		VerbFire:   func() (JobReply, error) { return c.Fire(t.Context(), "j", FirePayload([]byte(`"x"`), PayloadNone)) },
	} {
		s.answers(c.Names().API(verb, "j"), ok, notFound)
		got, err := call()
		if err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		if diff := cmp.Diff(job, got); diff != "" {
			t.Errorf("%s: %s", verb, diff)
		}
		if _, err := call(); !errors.Is(err, &Error{Code: CodeNotFound}) {
			t.Errorf("%s: %v; want not_found", verb, err)
		}
	}
	if body := string(s.requests("carillon.api.resume.j")[0].Data); body != `{"if_version":1}` {
		t.Errorf("resume's body %s", body)
	}
	if body := string(s.requests("carillon.api.fire.j")[0].Data); body != `{"payload":"x"}` {
		t.Errorf("fire's body %s", body)
	}

	// A delete is done when it is found to have been done by a try whose answer was lost.
	s.answers("carillon.api.delete.j", answer{}, notFound)
	gone := JobReply{ID: "j", Status: StatusDeleted, Spec: Job{ID: "j"}}
	brief := Connect(nc, WithTimeout(9*time.Second)) // 3 s a try
	if got, err := brief.Delete(t.Context(), "j"); err != nil || !cmp.Equal(got, gone) {
		t.Errorf("delete: %+v, %v", got, err)
	}
	gone.Version, gone.LastScheduled, gone.Fires = 3, time.UnixMilli(9).UTC(), 2
	s.answers("carillon.api.delete.j", answer{body: gone.AppendJSON(nil)}, notFound)
	if got, err := c.Delete(t.Context(), "j"); err != nil || !cmp.Equal(got, gone) {
		t.Errorf("delete: %+v, %v", got, err)
	}
	if _, err := c.Delete(t.Context(), "j"); !errors.Is(err, &Error{Code: CodeNotFound}) {
		t.Errorf("delete: %v; want not_found", err)
	}

	// A fire whose outcome is unknown is not sent again, and nor is what is asked for once.
	for verb, call := range map[Verb]func() (JobReply, error){
		VerbFire:   func() (JobReply, error) { return c.Fire(t.Context(), "lost") },
		VerbPut:    func() (JobReply, error) { return c.Put(t.Context(), Job{ID: "lost", Schedule: "@hourly"}, NoRetry()) },
		VerbResume: func() (JobReply, error) { return c.Resume(t.Context(), "lost", NoRetry()) },
		VerbDelete: func() (JobReply, error) { return c.Delete(t.Context(), "lost", NoRetry()) },
	} {
		subject := c.Names().API(verb, "lost")
		s.answers(subject, answer{refusal: &Error{Code: CodeUnavailable, Message: "x"}})
		if _, err := call(); !errors.Is(err, &Error{Code: CodeUnavailable}) {
			t.Errorf("%s: %v", verb, err)
		}
		if n := len(s.requests(subject)); n != 1 {
			t.Errorf("%s was sent %d times", verb, n)
		}
	}

	s.answers("carillon.api.pause", answer{body: (&SelectionReply{Matched: 5, Changed: 3, Unchanged: 1, Failed: 1}).AppendJSON(nil)})
	r, err := c.PauseWhere(t.Context(), Selection{Prefix: "acme-", Label: "team=billing"})
	if want := (SelectionReply{TypeSelection, 5, 3, 1, 1}); err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	// As JSON it would be the selection of another owner.
	_, deleted := c.DeleteWhere(t.Context(), Selection{Owner: "acme\xff"})
	_, listed := c.ListPage(t.Context(), ListRequest{Selection: Selection{Owner: "acme\xff"}})
	for _, err := range []error{deleted, listed} {
		if !errors.Is(err, &Error{Code: CodeInvalidField, Field: "owner"}) {
			t.Errorf("an owner that is no UTF-8: %v", err)
		}
	}
	if body := string(s.requests("carillon.api.pause")[0].Data); body != `{"prefix":"acme-","label":"team=billing"}` {
		t.Errorf("body %s", body)
	}

	next := []time.Time{time.UnixMilli(1000).UTC(), time.UnixMilli(61001).UTC()}
	s.answers("carillon.api.preview", answer{body: (&PreviewReply{next}).AppendJSON(nil)})
	if got, err := c.Preview(t.Context(), PreviewRequest{Schedule: "@hourly", Count: 2}); err != nil || !cmp.Equal(got, next) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := c.DrainNode(t.Context(), "", false); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "node"}) {
		t.Errorf("a drain of no node: %v", err)
	}
	nobody := Connect(nc, WithNames(NamesFor("nobody")), WithTimeout(100*time.Millisecond))
	if _, err := nobody.DrainNode(t.Context(), "n9", false); !errors.Is(err, &Error{Code: CodeUnavailable}) || !strings.Contains(err.Error(), `no node "n9" answers`) {
		t.Errorf("a drain of a node that is not there: %v", err)
	}
	fine := time.UnixMilli(1000).Add(time.Microsecond)
	for field, p := range map[string]PreviewRequest{"start": {Schedule: "@hourly", Start: fine}, "end": {Schedule: "@hourly", End: fine}} {
		if got, err := c.Preview(t.Context(), p); !errors.Is(err, &Error{Code: CodeInvalidField, Field: field}) {
			t.Errorf("%s finer than a millisecond: %v, %v", field, got, err)
		}
	}
	negative := PreviewRequest{Schedule: "@hourly", Count: -1}
	if _, err := ParsePreview(negative.AppendJSON(nil)); err == nil || !strings.Contains(err.Error(), "count: is -1;") {
		t.Errorf("a preview of -1: %v", err)
	}
	status := StatusReply{Type: TypeStatus, Node: "n1", Partitions: []PartitionStatus{{Partition: 0, Jobs: map[Status]uint64{StatusPaused: 4}}}}
	s.answers("carillon.api.status", answer{body: status.AppendJSON(nil)})
	if got, err := c.Status(t.Context()); err != nil || !cmp.Equal(got, status) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Nothing is left with a connection that is down, to be carried out when it is back and nobody waits for it.
func TestClientWithoutConnection(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{})
	nc := dial(t, ns.ClientURL())
	c := Connect(nc, WithTimeout(300*time.Millisecond))
	ns.Shutdown()
	eventually(t, "the connection down", nc.IsReconnecting)
	_, put := c.Put(t.Context(), Job{ID: "j"})
	_, fire := c.Fire(t.Context(), "j")
	_, send := c.Send(t.Context(), Command{Verb: VerbFire, Job: "j"})
	_, save := c.SaveSnapshot(t.Context(), SnapshotRequest{Dir: "/backup"}, nil)
	for what, err := range map[string]error{"put": put, "fire": fire, "send": send, "save": save} {
		if !errors.Is(err, &Error{Code: CodeUnavailable}) || !strings.Contains(err.Error(), "nothing was sent") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n, err := nc.Buffered(); err != nil || n > 0 {
		t.Errorf("the connection keeps %d bytes, %v", n, err)
	}
	if _, err := c.Watch(t.Context(), ">"); !errors.Is(err, context.DeadlineExceeded) || nc.NumSubscriptions() > 0 {
		t.Errorf("watch: %v, %d subscriptions are left", err, nc.NumSubscriptions())
	}

	patient := Connect(nc, WithTimeout(time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := patient.Watch(ctx, ">"); !errors.Is(err, context.Canceled) || nc.NumSubscriptions() > 0 {
		t.Errorf("watch: %v, %d subscriptions are left", err, nc.NumSubscriptions())
	}
}

// Who gives up while the connection is down is told that he did, in whichever try.
func TestClientGivesUp(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{})
	nc := dial(t, ns.ClientURL())
	c := Connect(nc, WithTimeout(6*time.Second)) // 2 s a try
	ns.Shutdown()
	eventually(t, "the connection down", nc.IsReconnecting)
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 3 * time.Second} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		var calls sync.WaitGroup
		for what, call := range map[string]func() error{
			"get":  func() error { _, err := c.Get(ctx, "j"); return err },
			"send": func() error { _, err := c.Send(ctx, Command{Verb: VerbFire, Job: "j"}); return err },
		} {
			calls.Go(func() {
				if err := call(); !errors.Is(err, context.Canceled) || !errors.Is(err, &Error{Code: CodeUnavailable}) {
					t.Errorf("%s, after %s: %v", what, after, err)
				}
			})
		}
		calls.Wait()
	}
}

// What a later try meets, a condition that holds no longer or a service without room, says nothing of a try whose answer was lost: it may
// have been applied.
func TestClientRefusedLater(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(9*time.Second)) // 3 s a try
	conflict := &Error{Code: CodeVersionConflict, Field: "if_version", Message: "job is at version 3, not 1"}
	gone := &Error{Code: CodeNotFound, Message: "no job"}
	full := &Error{Code: CodeLimitExceeded, Message: "the log is nearly full; nothing was done"}
	put := func(id string) (JobReply, error) {
		return c.Put(t.Context(), Job{ID: id, Schedule: "@hourly"}, IfVersion(1))
	}
	var work sync.WaitGroup
	for name, o := range map[string]struct {
		verb Verb
		call func(id string) (JobReply, error)
		*Error
	}{
		"put-conflict":    {VerbPut, put, conflict},
		"put-gone":        {VerbPut, put, gone},
		"put-full":        {VerbPut, put, full},
		"pause-conflict":  {VerbPause, func(id string) (JobReply, error) { return c.Pause(t.Context(), id, IfVersion(1)) }, conflict},
		"pause-full":      {VerbPause, func(id string) (JobReply, error) { return c.Pause(t.Context(), id) }, full},
		"delete-conflict": {VerbDelete, func(id string) (JobReply, error) { return c.Delete(t.Context(), id, IfVersion(1)) }, conflict},
		"delete-full":     {VerbDelete, func(id string) (JobReply, error) { return c.Delete(t.Context(), id) }, full},
	} {
		subject := c.Names().API(o.verb, name)
		s.answers(subject, answer{}, answer{refusal: o.Error})
		work.Go(func() {
			if _, err := o.call(name); !errors.Is(err, unknown) || errors.Is(err, o.Error) || strings.Contains(err.Error(), didNothing) {
				t.Errorf("%s, after a try without an answer: %v; want unavailable", name, err)
			}
			if _, err := o.call(name); !errors.Is(err, o.Error) {
				t.Errorf("%s: %v; want %s", name, err, o.Code)
			}
			tries := s.requests(subject)
			tries = tries[:len(tries)-1] // the last one is the second call's
			if len(tries) < 2 || o.Error == full && len(tries) < 3 {
				t.Errorf("%s was tried %d times", name, len(tries))
			}
			for _, m := range tries {
				if m.Header.Get(HeaderRequest) != tries[0].Header.Get(HeaderRequest) {
					t.Errorf("%s was sent under another %s", name, HeaderRequest)
				}
			}
		})
	}
	work.Wait()
}

// A command that was answered late is applied once there is room for its copy, which is answered as the first one would have been.
func TestClientRoomLater(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(6*time.Second)) // 2 s a try
	full := answer{refusal: &Error{Code: CodeLimitExceeded}}
	s.answers(c.Names().API(VerbPut, "j"), answer{}, full, full, answer{body: (&JobReply{ID: "j", Version: 7}).AppendJSON(nil)})
	if j, err := c.Put(t.Context(), Job{ID: "j", Schedule: "@hourly"}); err != nil || j.Version != 7 {
		t.Errorf("version %d, %v", j.Version, err)
	}
}

// Answers that are lost are asked for again as often as there is time.
func TestClientAnswersLost(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(15*time.Second))
	lost := answer{}
	s.answers(c.Names().API(VerbGet, "j"), lost, lost, lost, answer{refusal: &Error{Code: CodeNotFound}})
	if _, err := c.Get(t.Context(), "j"); !errors.Is(err, &Error{Code: CodeNotFound}) {
		t.Error(err)
	}
}

// A query goes to further engines while the first one does not answer, and the answer to any of its copies is heard, however late.
func TestClientQueriesSeveral(t *testing.T) {
	nc, _ := startNATS(t)
	c := Connect(nc, WithTimeout(6*time.Second)) // a command would have three tries of 2 s
	asked := make(chan *nats.Msg, 64)
	if _, err := nc.ChanSubscribe(c.Names().API(VerbGet, "j"), asked); err != nil {
		t.Fatal(err)
	}
	got := make(chan JobReply, 1)
	go func() {
		defer close(got)
		j, err := c.Get(t.Context(), "j")
		if err != nil {
			t.Error(err)
			return
		}
		got <- j
	}()
	first := <-asked
	for tries := 1; tries < 4; tries++ {
		select {
		case <-asked:
		case <-got:
			t.Fatalf("the query was given up after %d tries", tries)
		}
	}
	if err := first.Respond([]byte(`{"type":"carillon.v1.job","id":"j","version":7}`)); err != nil {
		t.Error(err)
	}
	if j := <-got; j.Version != 7 {
		t.Errorf("version %d; want 7", j.Version)
	}
}

// A list that was left in the middle begins anew when it is walked again.
func TestClientListAgain(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(time.Minute))
	page := func(id, cursor string) answer {
		r := JobsReply{Jobs: []JobReply{{ID: id, Version: 1, Status: StatusScheduled, Spec: Job{ID: id}}}, Cursor: cursor}
		return answer{body: r.AppendJSON(nil)}
	}
	s.answers("carillon.api.list", page("a", "a"), page("b", "b"), page("a", ""))
	jobs := c.List(t.Context(), ListRequest{})
	for j, err := range jobs {
		if err != nil {
			t.Fatal(err)
		}
		if j.ID == "b" {
			break
		}
	}
	for _, err := range jobs {
		if err != nil {
			t.Fatal(err)
		}
	}
	requests := s.requests("carillon.api.list")
	if len(requests) != 3 || string(requests[2].Data) != "{}" {
		t.Errorf("%d requests, the last one for %s; want a third one for the beginning", len(requests), requests[len(requests)-1].Data)
	}
}

func TestClientList(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(time.Minute))
	page := func(cursor string, ids ...string) answer {
		r := JobsReply{Cursor: cursor}
		for _, id := range ids {
			r.Jobs = append(r.Jobs, JobReply{ID: id, Version: 1, Status: StatusScheduled, Spec: Job{ID: id, Payload: []byte("[1, 2]"), Form: PayloadJSON}})
		}
		return answer{body: r.AppendJSON(nil)}
	}
	s.answers("carillon.api.list", page("b", "a", "b"), page("b2"), page("", "c"))
	var ids []string
	for j, err := range c.List(t.Context(), ListRequest{Selection: Selection{Owner: "acme"}, Limit: 2}) {
		if err != nil || string(j.Spec.Payload) != "[1, 2]" {
			t.Fatal(j, err)
		}
		ids = append(ids, j.ID)
	}
	if !slices.Equal(ids, []string{"a", "b", "c"}) {
		t.Errorf("%v", ids)
	}
	var bodies []string
	for _, m := range s.requests("carillon.api.list") {
		bodies = append(bodies, string(m.Data))
	}
	if want := `{"owner":"acme","limit":2} {"owner":"acme","limit":2,"cursor":"b"} {"owner":"acme","limit":2,"cursor":"b2"}`; strings.Join(bodies, " ") != want {
		t.Errorf("asked %v", bodies)
	}
	s.answers("carillon.api.list", page("b", "a"), answer{refusal: &Error{Code: CodeInvalidField, Field: "cursor", Message: "is stale"}})
	var last error
	for _, err := range c.List(t.Context(), ListRequest{}) {
		last = err
	}
	if !errors.Is(last, &Error{Code: CodeInvalidField, Field: "cursor"}) {
		t.Errorf("%v", last)
	}
}

func TestClientWithoutService(t *testing.T) {
	nc, _ := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := Connect(nc, WithTimeout(time.Minute)).Get(ctx, "j")
	if !errors.Is(err, &Error{Code: CodeUnavailable}) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("%v", err)
	}
	if !strings.Contains(err.Error(), `"carillon"`) {
		t.Errorf("%v does not name the prefix", err)
	}

	// A service that comes up in time is found, and even a fire is sent again: nobody had heard it.
	c := Connect(nc, WithNames(NamesFor("carillon")), WithTimeout(time.Minute))
	result := make(chan error, 1)
	go func() {
		_, err := c.Fire(t.Context(), "j")
		result <- err
	}()
	s := &service{t: t, script: map[string][]answer{"carillon.api.fire.j": {{body: []byte(`{"type":"carillon.v1.job","id":"j"}`)}}}, asked: map[string][]*nats.Msg{}}
	if _, err := nc.Subscribe("carillon.api.>", s.serve); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}

	// Where the context is over before anything was sent, the outcome is not unknown.
	cancelled, stop := context.WithCancel(t.Context())
	stop()
	late, expired := context.WithTimeout(t.Context(), -1)
	defer expired()
	for _, over := range []context.Context{cancelled, late} {
		_, get := c.Get(over, "j")
		_, fire := c.Fire(over, "j")
		_, send := c.Send(over, Command{Verb: VerbFire, Job: "j"})
		for what, err := range map[string]error{"get": get, "fire": fire, "send": send} {
			want := "unavailable: nothing was sent (" + over.Err().Error() + ")"
			if !errors.Is(err, over.Err()) || !errors.Is(err, &Error{Code: CodeUnavailable}) || err.Error() != want {
				t.Errorf("%s: %v, want %s", what, err, want)
			}
		}
	}
	nc.Close()
	if _, err := c.Get(t.Context(), "j"); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("%v", err)
	}
}

// A change of many jobs may take minutes, but not where nobody has begun it.
func TestSelectionWithoutServiceIsUnavailable(t *testing.T) {
	nc, _ := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := Connect(nc, WithTimeout(100*time.Millisecond)).PauseWhere(ctx, Selection{Owner: "acme"})
	if !errors.Is(err, &Error{Code: CodeUnavailable}) || !errors.Is(err, nats.ErrNoResponders) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

// What the server does not let an account do is told as that, and at once: no answer would come, however long one waits.
func TestClientWithoutRights(t *testing.T) {
	t.Parallel()
	o := &server.Options{JetStream: true, Users: []*server.User{
		{Username: "service", Password: "s"},
		{Username: "acme", Password: "a", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"carillon.api.*.acme"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", "carillon.trigger.*.acme"}},
		}},
	}}
	url := natstest.Start(t, o).ClientURL()
	as := func(user, password string) *nats.Conn {
		nc, err := nats.Connect(url, nats.UserInfo(user, password), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	s := startService(t, as("service", "s"))
	s.answers("carillon.api.get.acme", answer{body: (&JobReply{ID: "acme", Version: 1}).AppendJSON(nil)})
	c := Connect(as("acme", "a"), WithTimeout(time.Hour))
	forbidden := map[string]func() error{
		"get":   func() error { _, err := c.Get(t.Context(), "other"); return err },
		"send":  func() error { _, err := c.Send(t.Context(), Command{Verb: VerbDelete, Job: "acme"}); return err },
		"watch": func() error { _, err := c.Watch(t.Context(), ">"); return err },
		"save":  func() error { _, err := c.SaveSnapshot(t.Context(), SnapshotRequest{Dir: "/a"}, nil); return err },
		"import": func() (err error) {
			jobs := []ImportJob{{Job: Job{ID: "acme", Topic: "acme"}}}
			if e := c.Import(t.Context(), slices.Values(jobs), func(_ int, e error) { err = e }); e != nil {
				return e
			}
			return err
		},
	}
	for range 2 { // the second time the connection has the same error from before
		for name, f := range forbidden {
			if err := f(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "carillon.") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r, err := c.Get(t.Context(), "acme"); err != nil || r.ID != "acme" {
			t.Errorf("what it may do: %+v, %v", r, err)
		}
		if _, err := c.Watch(t.Context(), "acme"); err != nil {
			t.Error(err)
		}
	}
}

func TestClientTooLarge(t *testing.T) {
	nc, _ := startNATS(t)
	startService(t, nc)
	job := Job{ID: "j", Payload: []byte(strings.Repeat("\x01", MaxPayload)), Form: PayloadText} // six bytes each in JSON
	if _, err := Connect(nc).Put(t.Context(), job); !errors.Is(err, &Error{Code: CodePayloadTooLarge}) {
		t.Errorf("%v", err)
	}
}

func TestClientPutAll(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc)
	const n = 300
	jobs := func(yield func(Job) bool) {
		for i := range n {
			id := fmt.Sprint("job", i)
			s.answers("carillon.api.put."+id, answer{body: (&JobReply{ID: id, Version: 1}).AppendJSON(nil)})
			if !yield(Job{ID: id}) {
				return
			}
		}
	}
	seen := make(map[string]bool)
	err := c.PutAll(t.Context(), jobs, 16, func(j Job, r JobReply, err error) {
		if err != nil || r.ID != j.ID || seen[j.ID] {
			t.Errorf("%s: %+v, %v", j.ID, r, err)
		}
		seen[j.ID] = true
	})
	if err != nil || len(seen) != n {
		t.Errorf("%d put, %v", len(seen), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.PutAll(ctx, jobs, 2, func(Job, JobReply, error) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestClientSend(t *testing.T) {
	nc, js := startNATS(t)
	c := Connect(nc, WithTimeout(time.Minute))
	if _, err := Connect(nc, WithTimeout(2*time.Second)).Send(t.Context(), Command{Verb: VerbPut, Job: "j"}); !errors.Is(err, &Error{Code: CodeUnavailable}) {
		t.Errorf("without a log: %v", err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.cmd.*.*"}})
	if err != nil {
		t.Fatal(err)
	}
	seq, err := c.Send(t.Context(), Command{Verb: VerbPut, Job: "j", Body: AppendPut(nil, &Job{}, nil), Request: "r1"})
	if err != nil || seq != 1 {
		t.Fatal(seq, err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil || m.Subject != "carillon.cmd.put.j" || string(m.Data) != "{}" || m.Header.Get(HeaderRequest) != "r1" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := c.Send(t.Context(), Command{Verb: VerbPut, Job: "*"}); !errors.Is(err, &Error{Code: CodeInvalidJobID}) {
		t.Errorf("%v", err)
	}
	for _, verb := range []Verb{"", "put.j", "put j"} { // no subject of a command
		if _, err := c.Send(t.Context(), Command{Verb: verb, Job: "j"}); !errors.Is(err, &Error{Code: CodeInvalidField}) {
			t.Errorf("verb %q: %v", verb, err)
		}
	}
}

// A connection that breaks in the middle of a write is one that a later try may get over.
func TestBrokenConnectionIsUnavailable(t *testing.T) {
	c := Connect(&nats.Conn{})
	err := c.connectionError(&net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET})
	if !errors.Is(err, &Error{Code: CodeUnavailable}) || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	if err := c.connectionError(errors.New("other")); errors.Is(err, &Error{Code: CodeUnavailable}) {
		t.Errorf("%v", err)
	}
}
