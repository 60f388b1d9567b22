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

func (a *accounts) dial(t *testing.T, user string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(a.url, nats.UserInfo(user, user), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (a *accounts) client(t *testing.T, user string) *carillon.Client {
	return carillon.Connect(a.dial(t, user), carillon.WithTimeout(10*time.Second))
}

// nobody checks that nobody receives a request.
func nobody(t *testing.T, nc *nats.Conn, subject string, body string) {
	t.Helper()
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
		m, err := nc.Request(subject, []byte("{}"), 5*time.Second)
		if !errors.Is(err, nats.ErrNoResponders) && (err != nil || !strings.Contains(string(m.Data), "not enabled")) {
			t.Errorf("%s was heard: %v, %v", subject, m, err)
		}
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
	frames := `CONNECT {"user":"acme","pass":"acme","verbose":false,"headers":true}` + "\r\nSUB in 1\r\n"
	for _, dest := range dests {
		for i := range most {
			head := "NATS/1.0\r\nX: a\nNats-Trace-Dest: " + dest + "\r\n\r\n"
			frames += fmt.Sprintf("HPUB carillon.api.get.acme:order-%d in %d %d\r\n%s\r\n", i, len(head), len(head), head)
		}
	}
	if _, err := raw.Write([]byte(frames)); err != nil {
		t.Fatal(err)
	}
	for lines, answers := bufio.NewScanner(raw), 0; answers < most*len(dests); {
		if !lines.Scan() {
			t.Fatalf("%d answers: %v", answers, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "HMSG in ") {
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
	if _, err := c.CreateTopicQueue(t.Context(), "billing.>", carillon.TopicQueueOptions{}); err != nil {
		t.Error(err)
	}
	for _, subject := range []string{"carillon.log.0.tick", "carillon.trigger.0.x", "carillon.event.0.x.y"} {
		if err := nc.Publish(subject, []byte("forged")); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := nc.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			t.Errorf("%s: %v", subject, err)
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
