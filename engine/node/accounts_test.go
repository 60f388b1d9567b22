package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// accounts is a nats-server with the accounts of docs/deploy/nats/carillon.conf, and two engines on it.
type accounts struct {
	url  string
	log  *violations
	runs []*running
}

// violations is a server's logger that keeps the errors, among which are violations of permissions.
type violations struct {
	mu    sync.Mutex
	lines []string
}

func (v *violations) Noticef(string, ...any) {}
func (v *violations) Warnf(string, ...any)   {}
func (v *violations) Fatalf(string, ...any)  {}
func (v *violations) Debugf(string, ...any)  {}
func (v *violations) Tracef(string, ...any)  {}
func (v *violations) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = append(v.lines, fmt.Sprintf(format, args...))
}

func (v *violations) of(user string) (lines []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, line := range v.lines {
		if strings.Contains(line, "Violation") && strings.Contains(line, `"`+user+`"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

func startAccounts(t *testing.T) *accounts {
	for _, user := range []string{"ENGINE", "OPERATOR", "CLIENT", "BILLING", "ACME"} {
		t.Setenv("CARILLON_"+user+"_PASSWORD", strings.ToLower(user))
	}
	o, err := server.ProcessConfigFile("../../docs/deploy/nats/carillon.conf")
	if err != nil {
		t.Fatal(err)
	}
	o.JetStream = true
	// Ann is another client, who has an inbox of her own, as operations.md says.
	for _, u := range o.Users {
		if u.Username == "client" {
			ann, may := *u, *u.Permissions
			may.Subscribe = &server.SubjectPermission{Allow: []string{"carillon.trigger.>", "carillon.event.>", "_INBOX_ann.>"}}
			ann.Username, ann.Password, ann.Permissions = "ann", "ann", &may
			o.Users = append(o.Users, &ann)
			break
		}
	}
	ns := natstest.Start(t, o)
	// A selection of many jobs takes minutes. Its client waits as long (client.go, selectionTimeout), and nats-server has to, too.
	exporter, err := ns.LookupAccount("CARILLON")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"carillon.api.delete", "carillon.api.pause", "carillon.api.resume", "carillon.tenant.acme.>"} {
		if d, err := exporter.ServiceExportResponseThreshold(subject); err != nil || d <= 10*time.Minute {
			t.Errorf("an answer on %s is dropped after %s, %v", subject, d, err)
		}
	}
	a := &accounts{url: ns.ClientURL(), log: &violations{}}
	ns.SetLoggerV2(a.log, false, false, false)
	// Each of the two engines follows only its own partitions, and must pass on requests about the others.
	for _, name := range []string{"one", "two"} {
		engine := base(t)
		engine.Name, engine.NATS, engine.NATSOptions = name, a.url, []nats.Option{nats.UserInfo("engine", "engine")}
		engine.Follow, engine.Standbys, engine.Linger = node.FollowPlaced, -1, time.Millisecond
		a.runs = append(a.runs, run(t, engine))
	}
	operator := a.dial(t, "operator")
	eventually(t, "each partition is one engine's alone", func() bool {
		one, two := 0, 0
		for _, names := range followers(t, operator, partitions, []string{"one", "two"}) {
			if len(names) != 1 {
				return false
			}
			if names[0] == "one" {
				one++
			} else {
				two++
			}
		}
		return one > 0 && two > 0
	})
	return a
}

func (a *accounts) dial(t *testing.T, user string, more ...nats.Option) *nats.Conn {
	t.Helper()
	more = append(more, nats.UserInfo(user, user), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := nats.Connect(a.url, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (a *accounts) client(t *testing.T, user string) *carillon.Client {
	return carillon.Connect(a.dial(t, user), carillon.WithTimeout(10*time.Second))
}

// refuses tells whether the server refuses to take a message on a subject, or a subscription to it.
func refuses(t *testing.T, nc *nats.Conn, subject string, do func() error) bool {
	t.Helper()
	if err := errors.Join(do(), nc.Flush()); err != nil {
		t.Fatal(err)
	}
	err := nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`)
}

// nobody checks that nobody receives a request.
func nobody(t *testing.T, nc *nats.Conn, subject string, body string) {
	t.Helper()
	if refuses(t, nc, subject, func() error { return nc.Publish(subject, []byte(body)) }) {
		return
	}
	if m, err := nc.Request(subject, []byte(body), 5*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("%s: answer %v, %v; want nobody to hear it", subject, m, err)
	}
}

// job returns a job, which must be there, as the operator sees it.
func (a *accounts) job(t *testing.T, id string) carillon.JobReply {
	t.Helper()
	r, err := a.client(t, "operator").Get(t.Context(), id)
	if err != nil {
		t.Errorf("job %s: %v", id, err)
	}
	return r
}

// The accounts of the example configuration: each can do its work, and nothing else.
func TestAccounts(t *testing.T) {
	a := startAccounts(t)
	t.Run("client", a.testClient)
	t.Run("worker", a.testWorker)
	t.Run("tenant", a.testTenant)
	t.Run("orders", a.testOrders)
	t.Run("operator", a.testOperator)
	t.Run("peers", a.testPeers)

	// An engine has permission for all that it does.
	for _, run := range a.runs {
		run.stop(t)
	}
	if lines := a.log.of("engine"); len(lines) > 0 {
		t.Errorf("the engine met with refusals:\n%s", strings.Join(lines, "\n"))
	}
}

func (a *accounts) testClient(t *testing.T) {
	nc := a.dial(t, "client")
	c := carillon.Connect(nc, carillon.WithTimeout(10*time.Second))
	ctx, done := context.WithCancel(t.Context())
	defer done()
	live, err := c.Watch(ctx, ">")
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, carillon.Job{ID: "once", Schedule: "@in 1ms"})
	for trigger, err := range live {
		if err != nil || trigger.Job != "once" {
			t.Errorf("%+v, %v", trigger, err)
		}
		break
	}
	put(t, c, carillon.Job{ID: "idle"})
	for name, do := range map[string]func() error{
		"get":     func() error { _, err := c.Get(ctx, "idle"); return err },
		"list":    func() error { _, err := c.ListPage(ctx, carillon.ListRequest{}); return err },
		"status":  func() error { _, err := c.Status(ctx); return err },
		"preview": func() error { _, err := c.Preview(ctx, carillon.PreviewRequest{Schedule: "@daily"}); return err },
		"pause":   func() error { _, err := c.PauseWhere(ctx, carillon.Selection{Prefix: "idle"}); return err },
		"resume":  func() error { _, err := c.Resume(ctx, "idle"); return err },
		"fire":    func() error { _, err := c.Fire(ctx, "idle"); return err },
		"command": func() error {
			_, err := c.Send(ctx, carillon.Command{Verb: carillon.VerbFire, Job: "idle"})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := importLines(t, nc, "", `{"id":"imported"}`); r.Imported != 1 {
		t.Errorf("import: %+v", r)
	}

	// No message of a client arrives where engines write, not even as an answer of the server to the client's request.
	operator := a.dial(t, "operator")
	var forged []*nats.Subscription
	for _, subject := range []string{"carillon.log.>", "carillon.trigger.>", "carillon.event.>"} {
		sub, err := operator.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		forged = append(forged, sub)
	}
	if err := operator.Flush(); err != nil {
		t.Fatal(err)
	}
	targets := []string{"carillon.log.0.tick", "carillon.log.0.claim", "carillon.log._.tick", "carillon.log.0.put.x", "carillon.trigger.0.x", "carillon.event.0.x.y"}
	for _, subject := range targets {
		nobody(t, nc, subject, "forged")
		if err := nc.PublishRequest("carillon.cmd.forged.x", subject, nil); err != nil { // its ack would go there
			t.Fatal(err)
		}
		if err := nc.PublishRequest("carillon.api.get.idle", subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range []string{"carillon.api.snapshot", "carillon.api.drain.test", "carillon.tenant.acme.delete.acme:x", "$JS.API.STREAM.DELETE.CARILLON_LOG", "$JS.API.STREAM.PURGE.CARILLON_OUT_0"} {
		nobody(t, nc, subject, "{}")
	}
	fires(t, c, "after") // all that was sent before has been handled
	if err := operator.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, sub := range forged {
		arrived, _, err := sub.Pending()
		if err != nil || arrived == 0 {
			t.Fatalf("on %s nothing arrives: %v", sub.Subject, err)
		}
		for range arrived {
			m, err := sub.NextMsg(time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(targets, m.Subject) && (string(m.Data) == "forged" || m.Header == nil && !strings.HasPrefix(m.Subject, "carillon.log.")) {
				t.Errorf("on %s arrived %q", m.Subject, m.Data)
			}
		}
	}
}

func (a *accounts) testWorker(t *testing.T) {
	c := a.client(t, "client")
	o := carillon.WorkerOptions{Topic: "billing.>", Name: "billing"}
	made, err := a.client(t, "operator").MakeConsumers(t.Context(), o)
	if err != nil || made != partitions {
		t.Fatalf("%d consumers, %v", made, err)
	}
	put(t, c, carillon.Job{ID: "victim", Topic: "billing.x"})
	for p := range partitions {
		put(t, c, carillon.Job{ID: in(p, "invoice"), Schedule: "@in 1ms", Topic: "billing.x"})
	}
	nc := a.dial(t, "billing")
	ctx, done := context.WithCancel(t.Context())
	defer done()
	var mu sync.Mutex
	var got []string
	o.Partitions = made
	if err := carillon.Connect(nc).Work(ctx, o, func(_ context.Context, tr *carillon.Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, tr.Job); len(got) == partitions {
			done()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values([]string{in(0, "invoice"), in(1, "invoice")}))) {
		t.Errorf("the worker got %q", got)
	}

	nobody(t, nc, "carillon.api.delete.victim", "")
	nobody(t, nc, "carillon.cmd.delete.victim", "")
	// A pull with nothing to deliver is answered with an empty message, which as a request would delete the job.
	for _, subject := range []string{"carillon.api.delete.victim", "carillon.cmd.delete.victim", "carillon.log.0.delete.victim"} {
		if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.CARILLON_OUT_0.billing", subject, []byte(`{"no_wait":true}`)); err != nil {
			t.Fatal(err)
		}
	}
	nobody(t, nc, "$JS.API.CONSUMER.MSG.NEXT.CARILLON_OUT_0.other", "")
	fires(t, c, "after-worker")
	a.job(t, "victim")
}

func (a *accounts) testTenant(t *testing.T) {
	put(t, a.client(t, "client"), carillon.Job{ID: "bystander", Labels: map[string]string{"of": "all"}})
	put(t, a.client(t, "client"), carillon.Job{ID: "acmes", Labels: map[string]string{"of": "all"}})
	nc := a.dial(t, "acme")
	c := carillon.Connect(nc, carillon.WithTimeout(10*time.Second))
	ctx := t.Context()
	put(t, c, carillon.Job{ID: "acme:one", Topic: "acme.x", Labels: map[string]string{"of": "all"}})
	put(t, c, carillon.Job{ID: "acme:two", Topic: "acme"})
	if _, err := c.Fire(ctx, "acme:one"); err != nil {
		t.Error(err)
	}

	for name, do := range map[string]func() error{
		"put":           func() error { _, err := c.Put(ctx, carillon.Job{ID: "bystander", Topic: "acme"}); return err },
		"get":           func() error { _, err := c.Get(ctx, "bystander"); return err },
		"delete":        func() error { _, err := c.Delete(ctx, "bystander"); return err },
		"pause":         func() error { _, err := c.Pause(ctx, "acmes"); return err },
		"resume":        func() error { _, err := c.Resume(ctx, "bystander"); return err },
		"fire":          func() error { _, err := c.Fire(ctx, "bystander"); return err },
		"topic":         func() error { _, err := c.Put(ctx, carillon.Job{ID: "acme:x", Topic: "billing.x"}); return err },
		"default topic": func() error { _, err := c.Put(ctx, carillon.Job{ID: "acme:x"}); return err },
		"list": func() error {
			_, err := c.ListPage(ctx, carillon.ListRequest{Selection: carillon.Selection{Prefix: "vic"}})
			return err
		},
		"selection": func() error { _, err := c.DeleteWhere(ctx, carillon.Selection{Prefix: "acme"}); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "tenant acme") {
			t.Errorf("%s beyond its own: %v", name, err)
		}
	}
	r := importLines(t, nc, "", `{"id":"acme:three","topic":"acme"}`, `{"id":"bystander","topic":"acme"}`, `{"id":"acme:four","topic":"billing"}`)
	if r.Imported != 1 || len(r.Failed) != 2 {
		t.Errorf("import: %+v", r)
	}
	var ids []string
	for job, err := range c.List(ctx, carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.ID)
	}
	if !slices.Equal(ids, []string{"acme:one", "acme:three", "acme:two"}) {
		t.Errorf("it sees %q", ids)
	}
	if counts, err := c.DeleteWhere(ctx, carillon.Selection{Label: "of=all"}); err != nil || counts.Matched != 1 || counts.Changed != 1 {
		t.Errorf("deleting by a label that others have, too: %+v, %v", counts, err)
	}
	for _, subject := range []string{
		"carillon.tenant.other.delete.other:x", "carillon.tenant.acme.delete.acme:two", "carillon.cmd.delete.bystander",
		"carillon.api.snapshot", "carillon.api.drain.test", "carillon.api.status", "carillon.log.0.tick",
	} {
		nobody(t, nc, subject, "")
	}
	if v := a.job(t, "bystander").Version; v != 1 {
		t.Errorf("the other's job is at version %d", v)
	}
	a.job(t, "acme:two")
	// The topic of a job without one is called default.
	if m, err := a.dial(t, "operator").Request("carillon.tenant.default.put.default:x", []byte(`{}`), 5*time.Second); err != nil || m.Header.Get("Nats-Service-Error") != "" {
		t.Errorf("the tenant of the default topic: %v, %+v", err, m)
	}
	if _, err := a.dial(t, "operator").Request("carillon.tenant.a:b.get.a:b:c", nil, 5*time.Second); err != nil {
		t.Error(err)
	}
}

// When an engine passes a request on to another, orders to nats-server in the request's headers are not carried out with the engine's
// permissions. nats-server removes such headers from messages to another account, but it ends a line only at CR LF, while the client
// library ends one at LF alone.
func (a *accounts) testOrders(t *testing.T) {
	operator := a.dial(t, "operator")
	var forged []*nats.Subscription
	dests := []string{"carillon.log.0.tick", "carillon.trigger.0.forged", "$KV.CARILLON_NODES.forged"}
	for _, dest := range dests {
		sub, err := operator.SubscribeSync(dest)
		if err != nil {
			t.Fatal(err)
		}
		forged = append(forged, sub)
	}
	fence, err := operator.SubscribeSync("fence")
	if err != nil {
		t.Fatal(err)
	}
	if err := operator.Flush(); err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", strings.TrimPrefix(a.url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const most = 16 // some of them come to the engine that does not follow the job's partition
	frames := `CONNECT {"user":"acme","pass":"acme","verbose":false,"headers":true}` + "\r\nSUB _INBOX.in 1\r\n"
	for _, dest := range dests {
		for i := range most {
			head := "NATS/1.0\r\nX: a\nNats-Trace-Dest: " + dest + "\r\n\r\n"
			frames += fmt.Sprintf("HPUB carillon.api.get.acme:order-%d _INBOX.in %d %d\r\n%s\r\n", i, len(head), len(head), head)
		}
	}
	if _, err := raw.Write([]byte(frames)); err != nil {
		t.Fatal(err)
	}
	for lines, answers := bufio.NewScanner(raw), 0; answers < most*len(dests); {
		if !lines.Scan() {
			t.Fatalf("%d answers: %v", answers, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "HMSG _INBOX.in ") {
			answers++
		}
	}
	// An engine answers after it has passed a request on, and nats-server publishes traces in the order of the traced messages. So once the
	// trace of the operator's own message is here, all others are.
	if err := operator.PublishMsg(&nats.Msg{Subject: "nobody", Header: nats.Header{"Nats-Trace-Dest": {fence.Subject}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := fence.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), `"server"`) {
		t.Fatalf("the operator's own trace: %v, %v", m, err)
	}
	for _, sub := range forged {
		arrived, _, err := sub.Pending()
		if err != nil {
			t.Fatal(err)
		}
		for range arrived {
			m, err := sub.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(m.Data), `"server"`) {
				t.Errorf("a tenant had the server publish on %s: %.80s", m.Subject, m.Data)
			}
		}
	}
}

func (a *accounts) testOperator(t *testing.T) {
	nc := a.dial(t, "operator")
	c := carillon.Connect(nc, carillon.WithTimeout(10*time.Second))
	if _, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Bucket: "saves"}, nil); err != nil {
		t.Error(err)
	}
	queue, err := c.CreateTopicQueue(t.Context(), "billing.>", carillon.TopicQueueOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// A queue that lacks a partition is mended.
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	lacking := queue.CachedInfo().Config
	lacking.Sources = lacking.Sources[1:]
	if _, err := js.UpdateStream(t.Context(), lacking); err != nil {
		t.Fatal(err)
	}
	var change carillon.TopicQueueChange
	changed := func(c carillon.TopicQueueChange) { change = c }
	queue, err = c.CreateTopicQueue(t.Context(), "billing.>", carillon.TopicQueueOptions{Changed: changed})
	if err != nil || !slices.Equal(change.Added, []int{0}) || len(queue.CachedInfo().Config.Sources) != partitions {
		t.Errorf("mending the queue added %v: %v", change.Added, err)
	}

	// Workers named billing take from it, too, once it has a consumer of theirs.
	consumer := jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy}
	if _, err := queue.CreateConsumer(t.Context(), consumer); err != nil {
		t.Fatal(err)
	}
	put(t, c, carillon.Job{ID: "queued", Schedule: "@in 1ms", Topic: "billing.queued"})
	billing, pull := a.dial(t, "billing"), "$JS.API.CONSUMER.MSG.NEXT."+queue.CachedInfo().Config.Name+".billing"
	for job := ""; job != "queued"; {
		m, err := billing.Request(pull, []byte(`{"batch":1}`), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.AckSync(nats.AckWait(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		job = m.Header.Get(carillon.HeaderJob)
	}
	for _, subject := range []string{"carillon.log.0.tick", "carillon.trigger.0.x", "carillon.event.0.x.y"} {
		if !refuses(t, nc, subject, func() error { return nc.Publish(subject, []byte("forged")) }) {
			t.Errorf("%s: %v", subject, nc.LastError())
		}
	}
}

// Of two connections with the same name neither hears what the other asks for, and none can answer it, or publish what the other waits for.
func (a *accounts) testPeers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, peers := range []struct {
		user     string
		listen   []string // besides ">"
		publish  []string
		mayWatch []string
		do       func(t *testing.T, c *carillon.Client)
	}{
		{
			"client",
			[]string{
				"carillon.>", "carillon.*.>", "carillon.api.>", "carillon.api.get.*", "carillon.api.put.peer",
				"carillon.cmd.>", "carillon.cmd.*.*", "_R_.>",
			},
			[]string{"carillon.trigger.0.billing.pay", "carillon.event.0.skipped.peer", "_INBOX.peer.1"},
			[]string{"carillon.trigger.>", "carillon.event.>", "carillon.trigger.*.billing.>"},
			func(t *testing.T, c *carillon.Client) {
				put(t, c, carillon.Job{ID: "peer"})
				if _, err := c.Send(ctx, carillon.Command{Verb: carillon.VerbFire, Job: "peer"}); err != nil {
					t.Error(err)
				}
				if j, err := c.Get(ctx, "peer"); err != nil || j.Version != 1 {
					t.Errorf("the answer was %+v, %v", j, err)
				}
			},
		},
		{
			"acme",
			[]string{"carillon.>", "carillon.api.>", "carillon.api.get.*", "carillon.tenant.>", "carillon.trigger.>", "carillon.event.>"},
			[]string{"carillon.trigger.0.acme", "carillon.event.0.skipped.peer", "_INBOX.peer.1"},
			nil,
			func(t *testing.T, c *carillon.Client) {
				put(t, c, carillon.Job{ID: "acme:peer", Topic: "acme"})
				if j, err := c.Get(ctx, "acme:peer"); err != nil || j.Version != 1 {
					t.Errorf("the answer was %+v, %v", j, err)
				}
			},
		},
		{
			"billing",
			[]string{"$JS.>", "$JS.API.>", "$JS.API.CONSUMER.MSG.NEXT.*.billing", "$JS.ACK.>", "$JS.ACK.*.billing.>", "carillon.>"},
			[]string{"carillon.trigger.0.billing.pay", "_INBOX.peer.1"},
			nil,
			func(t *testing.T, c *carillon.Client) {
				put(t, a.client(t, "client"), carillon.Job{ID: "peers", Schedule: "@in 1ms", Topic: "billing.peers"})
				ctx, done := context.WithCancel(ctx)
				o := carillon.WorkerOptions{Topic: "billing.>", Name: "billing", Partitions: partitions}
				if err := c.Work(ctx, o, func(_ context.Context, tr *carillon.Trigger) error {
					if string(tr.Payload) == "forged" {
						t.Errorf("the worker got a forged trigger: %+v", tr)
					}
					if tr.Job == "peers" {
						done()
					}
					return nil
				}); err != nil || t.Context().Err() != nil {
					t.Error(err)
				}
			},
		},
	} {
		t.Run(peers.user, func(t *testing.T) {
			rogue := a.dial(t, peers.user)
			forged := nats.NewMsg("")
			forged.Data = []byte("forged")
			for name, value := range map[string]string{
				carillon.HeaderJob: "pay", carillon.HeaderTrigger: "pay@1000", carillon.HeaderScheduled: "1970-01-01T00:00:01.000Z",
				carillon.HeaderVersion: "1", carillon.HeaderOutput: "5",
			} {
				forged.Header.Set(name, value)
			}
			var mu sync.Mutex
			var heard []string
			for _, subject := range append(peers.listen, ">") {
				refused := refuses(t, rogue, subject, func() error {
					_, err := rogue.Subscribe(subject, func(m *nats.Msg) {
						mu.Lock()
						defer mu.Unlock()
						heard = append(heard, m.Subject)
						if m.Reply != "" {
							answer := *forged
							answer.Subject = m.Reply
							_ = rogue.PublishMsg(&answer)
						}
					})
					return err
				})
				if !refused {
					t.Errorf("%s may subscribe to %s", peers.user, subject)
				}
			}
			for _, subject := range peers.mayWatch {
				if refuses(t, rogue, subject, func() error { _, err := rogue.SubscribeSync(subject); return err }) {
					t.Errorf("%s may not watch %s", peers.user, subject)
				}
			}

			nc := a.dial(t, peers.user)
			var got []*nats.Subscription
			for _, subject := range append(peers.mayWatch, "_INBOX.peer.*") {
				sub, err := nc.SubscribeSync(subject)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, sub)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			for _, subject := range peers.publish {
				if !refuses(t, rogue, subject, func() error { m := *forged; m.Subject = subject; return rogue.PublishMsg(&m) }) {
					t.Errorf("%s may publish on %s", peers.user, subject)
				}
			}
			peers.do(t, carillon.Connect(nc, carillon.WithTimeout(10*time.Second)))
			if err := errors.Join(nc.Flush(), rogue.Flush()); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			if len(heard) > 0 {
				t.Errorf("another %s heard %q", peers.user, heard)
			}
			mu.Unlock()
			for _, sub := range got {
				for {
					m, err := sub.NextMsg(time.Millisecond)
					if err != nil {
						break
					}
					if string(m.Data) == "forged" {
						t.Errorf("%s got what another forged on %s", peers.user, m.Subject)
					}
				}
			}
		})
	}

	// Ann's answers are hers alone.
	nosy := a.dial(t, "client")
	answers, err := nosy.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	if !refuses(t, nosy, "_INBOX_ann.>", func() error { _, err := nosy.SubscribeSync("_INBOX_ann.>"); return err }) {
		t.Error("a client may listen for ann's answers")
	}
	ann := carillon.Connect(a.dial(t, "ann", nats.CustomInboxPrefix("_INBOX_ann")), carillon.WithTimeout(10*time.Second))
	put(t, ann, carillon.Job{ID: "anns"})
	if _, err := ann.Send(ctx, carillon.Command{Verb: carillon.VerbFire, Job: "anns"}); err != nil {
		t.Error(err)
	}
	if err := nosy.Flush(); err != nil {
		t.Fatal(err)
	}
	if m, err := answers.NextMsg(time.Millisecond); err == nil {
		t.Errorf("a client heard ann's answer %s", m.Data)
	}

	// The reply subject of a request is not checked. So an answer of the service may arrive where others watch, but neither as a
	// trigger nor as an event.
	rogue, c := a.dial(t, "client"), a.client(t, "client")
	live, err := c.Watch(ctx, ">")
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.WatchEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"carillon.trigger.0.billing.pay", "carillon.event.0.skipped.peer"} {
		for _, asked := range []string{"carillon.api.get.peer", "carillon.api.list", "carillon.cmd.pause.peer"} {
			if err := rogue.PublishRequest(asked, subject, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rogue.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send(ctx, carillon.Command{Verb: carillon.VerbPause, Job: "peer-none"}); err != nil {
		t.Fatal(err)
	}
	fires(t, c, "after-peers")
	for trigger, err := range live {
		if err != nil || trigger.Job == "pay" || trigger.Job == "" {
			t.Errorf("watched %+v, %v", trigger, err)
		}
		if trigger.Job == "after-peers" || err != nil {
			break
		}
	}
	for event, err := range events {
		if err != nil || event.Kind != carillon.EventRejected {
			t.Errorf("watched %+v, %v", event, err)
		}
		if event.Job == "peer-none" || err != nil {
			break
		}
	}
}

// Tenants have subjects of their own because neither permissions nor mappings of nats-server can match a part of a token.
func TestNoPartialTokens(t *testing.T) {
	if tr, err := server.NewSubjectTransform("carillon.api.put.*", "carillon.api.put.acme:{{wildcard(1)}}"); err == nil {
		if got := tr.TransformSubject("carillon.api.put.x"); got == "carillon.api.put.acme:x" {
			t.Error("a mapping can put a tenant in front of a job id: tenants need no subjects of their own")
		}
	}
	ns := natstest.Start(t, &server.Options{Users: []*server.User{{
		Username: "acme", Password: "p",
		Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"carillon.api.put.acme:*"}}},
	}}})
	nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo("acme", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := errors.Join(nc.Publish("carillon.api.put.acme:x", nil), nc.Flush()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		t.Error("a right can mean the beginning of a token: tenants need no subjects of their own")
	}
}
