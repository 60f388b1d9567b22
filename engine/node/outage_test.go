package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// An external nats-server is killed and comes back. /readyz says why the node is not ready, then it is ready again, and nothing is missing.
func TestOutage(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	r := run(t, e.options(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	for range 3 {
		beats(t, c, 10)
		e.kill()
		notReady(t, r.HTTP, "NATS cannot be reached: dial tcp ")
		e.start()
		ready(t, r)
	}
	beats(t, c, 20)
	unbroken(t, nc, c)
	r.stop(t)
}

// An external nats-server refuses the engine's credentials for a while, because its configuration is changed. The engine tries again and
// again, says why NATS cannot be reached, and goes on.
func TestRefusedForAWhile(t *testing.T) {
	t.Parallel()
	right := &server.Options{JetStream: true, Users: []*server.User{{Username: "engine", Password: "right"}, {Username: "client", Password: "c"}}}
	ns := natstest.Start(t, right)
	wrong := right.Clone()
	wrong.Users[0].Password = "wrong"
	o := base(t)
	o.NATS = strings.Replace(ns.ClientURL(), "nats://", "nats://engine:right@", 1)
	r := run(t, o)
	nc := dial(t, ns.ClientURL(), nats.UserInfo("client", "c"))
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	beats(t, c, 5)
	if err := ns.ReloadOptions(wrong); err != nil {
		t.Fatal(err)
	}
	tries := func() uint64 {
		v, err := ns.Varz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return v.TotalConnections
	}
	before := tries()
	notReady(t, r.HTTP, "NATS cannot be reached: nats: Authorization Violation")
	eventually(t, "it asks again and again", func() bool { return tries() > before+10 })
	if said, tried := strings.Count(strings.ToLower(r.log.String()), "authorization violation"), tries()-before; said == 0 || uint64(said) > tried/2 {
		t.Errorf("it said so %d times, and tried %d times", said, tried)
	}
	if err := ns.ReloadOptions(right); err != nil {
		t.Fatal(err)
	}
	beats(t, c, 20)
	unbroken(t, nc, c)
	r.stop(t)
}

// An external nats-server takes permissions from the engine for a while, or lowers how many subscriptions it may have. nats-server
// drops the subscriptions that are no longer allowed, those for answers, too, and does not restore them by itself.
func TestRightsTakenForAWhile(t *testing.T) {
	for name, c := range map[string]struct{ user, account, says string }{
		"subjects": {
			`, permissions: { subscribe: { deny: ["carillon.api.>", "_INBOX.>"] } }`, "",
			`a right is missing: nats: permissions violation: Permissions Violation for Subscription to "_INBOX.`,
		},
		"subscriptions": {
			"", "limits { max_subs: 3 },",
			"are more than its user or account may have: nats: server maximum subscriptions exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := func(user, account string) *server.Options {
				so := natstest.ParseOptions(t, fmt.Sprintf(
					"accounts { A { jetstream: enabled, %s users: [{user: e, password: e %s}, {user: c, password: c}] } }", account, user))
				so.JetStream = true
				return so
			}
			first := options("", "")
			ns := natstest.Start(t, first)
			o := base(t)
			o.NATS = strings.Replace(ns.ClientURL(), "nats://", "nats://e:e@", 1)
			r := run(t, o)
			connect := func() (*nats.Conn, *carillon.Client) {
				nc := dial(t, ns.ClientURL(), nats.UserInfo("c", "c"))
				return nc, carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
			}
			_, before := connect()
			put(t, before, beat)
			beats(t, before, 5)
			reload := func(user, account string) {
				so, with := first.Clone(), options(user, account)
				so.Accounts, so.Users = with.Accounts, with.Users
				if err := ns.ReloadOptions(so); err != nil {
					t.Fatal(err)
				}
			}
			reload(c.user, c.account)
			notReady(t, r.HTTP, c.says)
			reload("", "")
			nc, after := connect() // the limit was for the one before, too
			beats(t, after, 20)
			unbroken(t, nc, after)
			r.stop(t)
		})
	}
}

// An engine that may do everything but publish outputs leaves its partitions to one that may, and has its share again once it may, too.
func TestOutputsRefused(t *testing.T) {
	t.Parallel()
	const refused = `, permissions: { publish: { deny: ["carillon.trigger.>", "carillon.event.>"] } }`
	options := func(a, b string) *server.Options {
		so := natstest.ParseOptions(t, fmt.Sprintf(
			"accounts { A { jetstream: enabled, users: [{user: a, password: a %s}, {user: b, password: b %s}, {user: c, password: c}] } }", a, b))
		so.JetStream = true
		return so
	}
	first := options("", "")
	ns := natstest.Start(t, first)
	start := func(name string) *running {
		o := base(t)
		o.Name, o.NATS = name, strings.Replace(ns.ClientURL(), "nats://", "nats://"+name+":"+name+"@", 1)
		return run(t, o)
	}
	a, b := start("a"), start("b")
	nc := dial(t, ns.ClientURL(), nats.UserInfo("c", "c"))
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	for p := range partitions {
		put(t, c, carillon.Job{ID: in(p, "beat"), Schedule: "@every 50ms", Misfire: carillon.FireAll})
	}
	serves := func(name string) bool { return slices.Contains(owners(status(t, c)), name) }
	fire := func() {
		t.Helper()
		before := status(t, c).Partitions
		eventuallyEach(t, c, "it fires", func(p carillon.PartitionStatus) bool { return p.Published >= before[p.Partition].Published+20 })
	}
	reload := func(a, b string) {
		so, with := first.Clone(), options(a, b)
		so.Accounts, so.Users = with.Accounts, with.Users
		if err := ns.ReloadOptions(so); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both serve", func() bool { return serves("a") && serves("b") })
	reload(refused, "")
	eventually(t, "b serves alone", func() bool { return !serves("a") })
	notReady(t, a.HTTP, `the user "a" of account "A" may not publish on carillon.trigger.>, may not publish on carillon.event.>`)
	if r, err := c.DrainNode(t.Context(), "a", true); err != nil || !r.Draining {
		t.Errorf("asked to take its share again, which it may not, it says %+v, %v", r, err)
	}
	fire()
	reload(refused, refused) // neither may: the partitions stay with b, which goes on answering
	notReady(t, b.HTTP, `the user "b" of account "A" may not publish on carillon.trigger.>`)
	eventually(t, "both say so", func() bool {
		return !slices.ContainsFunc(status(t, c).Nodes, func(s carillon.NodeStatus) bool { return s.State != carillon.NodeDraining })
	})
	put(t, c, carillon.Job{ID: "meanwhile", Schedule: "@in 1ms"})
	if by := owners(status(t, c)); slices.Contains(by, "a") {
		t.Errorf("where neither may publish, b leaves what it serves: %v", by)
	}
	reload("", "")
	eventually(t, "both serve again", func() bool { return serves("a") && serves("b") })
	ready(t, a)
	ready(t, b)
	if r, err := c.DrainNode(t.Context(), "a", true); err != nil || r.Draining {
		t.Errorf("with its rights it says %+v, %v", r, err)
	}
	fire()
	allOutputs(t, nc, partitions)
	a.stop(t)
	b.stop(t)
}

// A server sends nothing any more, but no connection breaks: the engine goes to another server.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	w := startProxy(t, e.url[len("nats://"):])
	o := e.options(t)
	o.NATS, o.NATSOptions = w.url()+","+e.url, []nats.Option{nats.DontRandomize()}
	r := run(t, o)
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	beats(t, c, 5)
	if !w.connected() {
		t.Fatal("the engine goes to another server than the first")
	}
	w.swallow()
	beats(t, c, 20)
	unbroken(t, nc, c)
	r.stop(t)
}

// A tick that is not answered is sent again, for as long as it takes, and so is one that was lost with its
// connection.
func TestTickSentAgain(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	w := startProxy(t, e.url[len("nats://"):])
	o := e.options(t)
	o.NATS = w.url()
	r := run(t, o)
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	beats(t, c, 5)
	if _, err := nc.SubscribeSync("*.tick"); err != nil { // somebody receives them there, and does not answer
		t.Fatal(err)
	}
	w.divert("carillon.log.")
	notReady(t, r.HTTP, "ticks have gone unanswered")
	sent := metric(t, r.HTTP, "carillon_ticks_total")
	eventually(t, "ticks are sent again", func() bool { return metric(t, r.HTTP, "carillon_ticks_total") >= sent+1 })
	if failed := metric(t, r.HTTP, "carillon_ticks_failed_total"); failed > 0 {
		t.Errorf("%.0f ticks failed before anybody could know", failed)
	}
	w.cut()
	eventually(t, "the lost ticks are known", func() bool { return metric(t, r.HTTP, "carillon_ticks_failed_total") > 0 })
	w.divert()
	w.to(e.url[len("nats://"):])
	ready(t, r)
	beats(t, c, 20)
	unbroken(t, nc, c)
}

// A nats-server whose limit for messages is lower than the size of the largest answer is refused at the start. The error has the
// limit's name, its value and the least value.
func TestMaxPayload(t *testing.T) {
	t.Parallel()
	start := func(most int32) string {
		return natstest.Start(t, &server.Options{JetStream: true, MaxPayload: most}).ClientURL()
	}
	const least = 768 << 10
	o := base(t)
	o.NATS = start(least - 1)
	words(t, refused(t, o), "max_payload of nats-server", fmt.Sprint(least-1), fmt.Sprint(least))

	// With exactly the least value, the largest possible job comes through, in triggers and in answers.
	o.NATS = start(least)
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	escaped := func(n int) string { return strings.Repeat(`"`, n) }
	job := carillon.Job{
		ID: strings.Repeat("j", carillon.MaxJobIDLength), Schedule: "@in" + strings.Repeat("\t", carillon.MaxScheduleText-len("@in1ms")) + "1ms",
		Payload: bytes.Repeat([]byte{0xff}, carillon.MaxPayload), Form: carillon.PayloadBase64,
		Headers: map[string]string{"H": escaped(carillon.MaxHeaderBytes - 1)},
		Topic:   escaped(carillon.MaxTopicLength), Owner: escaped(carillon.MaxOwnerLength), Labels: map[string]string{},
	}
	for i := range carillon.MaxLabels {
		job.Labels[fmt.Sprintf("%02d%s", i, escaped(carillon.MaxLabelLength-2))] = escaped(carillon.MaxLabelLength)
	}
	p := put(t, c, job).Partition
	eventually(t, "it is stored", func() bool { return status(t, c).Partitions[p].Published == 1 })
	got := outputs(t, nc, p)
	if len(got) != 1 || got[0].trigger == nil || !bytes.Equal(got[0].trigger.Payload, job.Payload) || got[0].trigger.Headers.Get("H") != job.Headers["H"] {
		t.Errorf("%d outputs, not the job's", len(got))
	}
	listed := 0
	for of, err := range c.List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if listed++; of.ID != job.ID || !bytes.Equal(of.Spec.Payload, job.Payload) {
			t.Errorf("%s is listed", of.ID)
		}
	}
	if listed != 1 {
		t.Errorf("%d jobs are listed", listed)
	}
}

// So is one whose limit for the engine's account is too low.
func TestMaxPayloadOfAccount(t *testing.T) {
	t.Parallel()
	so := natstest.ParseOptions(t, "accounts { A { jetstream: enabled, limits { max_payload: 400000 }, users: [{user: e, password: p}] } }")
	so.JetStream = true
	o := base(t)
	o.NATS = strings.Replace(natstest.Start(t, so).ClientURL(), "nats://", "nats://e:p@", 1)
	words(t, refused(t, o), "max_payload of nats-server is 400000")
}

// A nats-server whose limit is lowered closes a connection for good when a message is larger. The engine says why, and waits until
// the limit is high enough again.
func TestMaxPayloadLowered(t *testing.T) {
	t.Parallel()
	before := &server.Options{JetStream: true}
	ns := natstest.Start(t, before)
	o := base(t)
	o.NATS = ns.ClientURL()
	r := run(t, o)
	large := beat
	large.Payload, large.Form = bytes.Repeat([]byte("x"), 64<<10), carillon.PayloadText
	put(t, client(t, r.NATS), large)
	limit := func(most int32) {
		t.Helper()
		so := before.Clone()
		so.MaxPayload = most
		if err := ns.ReloadOptions(so); err != nil {
			t.Fatal(err)
		}
	}
	limit(32 << 10)
	notReady(t, r.HTTP, "max_payload of nats-server is 32768")
	if !contains(r.log, "waiting for NATS", "Maximum Payload Violation") {
		t.Error("it did not say why the connection was closed")
	}
	limit(server.MAX_PAYLOAD_SIZE)
	r.again(t)
	c := client(t, r.NATS)
	beats(t, c, 5)
	unbroken(t, dial(t, r.NATS), c)
	r.stop(t)
}

// A job whose command fills a message fits into every answer, although an answer says more than the command.
func TestLongestCommand(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put := func(subject string) {
		t.Helper()
		body := []byte(`{"payload_text":"` + strings.Repeat(`\n`, carillon.MaxPayload-64) + `"}`)
		m, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: body}, 10*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if code := m.Header.Get("Nats-Service-Error"); code != "" {
			t.Errorf("%s: %s", subject, m.Data)
		}
	}
	put("carillon.api.put.a")
	put("carillon.cmd.put.b") // the stream answers
	eventually(t, "both are there", func() bool {
		_, err := c.Get(t.Context(), "b")
		return err == nil
	})
	n := 0
	for job, err := range c.List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; len(job.Spec.Payload) != carillon.MaxPayload-64 {
			t.Errorf("%s has %d bytes", job.ID, len(job.Spec.Payload))
		}
	}
	if n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// A node that starts before its nats-server waits for it.
func TestOutageAtStart(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.HTTP = natstest.FreeAddress(t)
	e.kill()
	r := launch(t, o)
	eventually(t, "it says what it waits for", func() bool { return contains(r.log, "waiting for NATS") })
	notReady(t, "http://"+o.HTTP, "NATS cannot be reached")
	e.start()
	r.again(t)
	fires(t, client(t, r.NATS), "after")
	r.stop(t)
}

// So does one that is turned away at its start by a server that has as many connections as it allows.
func TestNotAcceptingAtStart(t *testing.T) {
	t.Parallel()
	few := &server.Options{JetStream: true, MaxConn: 1}
	ns := natstest.Start(t, few)
	dial(t, ns.ClientURL())
	o := base(t)
	o.NATS = ns.ClientURL()
	r := launch(t, o)
	eventually(t, "it waits", func() bool { return contains(r.log, "waiting for NATS") })
	many := few.Clone()
	many.MaxConn = 100
	if err := ns.ReloadOptions(many); err != nil {
		t.Fatal(err)
	}
	r.again(t)
	r.stop(t)
}

// Two of three servers are cut off from all others, and take connections nevertheless. A node that comes to one of them first, and then to
// the other, starts by way of the third.
func TestCutOffServersAtStart(t *testing.T) {
	t.Parallel()
	var urls []string
	for i := range 2 {
		urls = append(urls, natstest.Start(t, &server.Options{
			JetStream: true, ServerName: fmt.Sprintf("cut-off-%d", i), Cluster: server.ClusterOpts{Name: "C", Host: "127.0.0.1", Port: -1},
			Routes: server.RoutesFromStr("nats://" + natstest.FreeAddress(t)),
		}).ClientURL())
	}
	well := natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	o := base(t)
	o.NATS, o.NATSOptions = strings.Join(append(urls, well), ","), []nats.Option{nats.DontRandomize()}
	r := launch(t, o)
	eventually(t, "the node is ready", func() bool { return len(r.readies) > 0 })
	r.again(t)
	if n := len(lines(r.log, "waiting for NATS")); n == 0 {
		t.Error("it came to no server that is cut off")
	}
	fires(t, client(t, well), "after")
	r.stop(t)
}

// If a file cannot be read, the node does not wait as it does for NATS: it ends, and says which file.
func TestFileIsNotNATS(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	r := run(t, o)
	r.stop(t)
	manifests, err := filepath.Glob(filepath.Join(o.Data, "jobs", "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatal(manifests, err)
	}
	for _, m := range manifests {
		if err := os.Remove(m); err != nil {
			t.Fatal(err)
		}
	}
	words(t, refused(t, o), "job table", "MANIFEST")
}

// If the data directory is renamed, and another is in its place, the node ends: a restart in place would go on with no jobs.
func TestDataMoved(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Data = filepath.Join(t.TempDir(), "data")
	r := run(t, o)
	put(t, client(t, r.NATS), carillon.Job{ID: "kept", Schedule: "@yearly"})
	elsewhere := o.Data + "-elsewhere"
	if err := errors.Join(os.Rename(o.Data, elsewhere), os.Mkdir(o.Data, 0o750)); err != nil {
		t.Fatal(err)
	}
	<-r.done
	if !errors.Is(r.err, node.ErrDataMoved) || !strings.Contains(r.err.Error(), o.Data) {
		t.Errorf("the node ended with %v", r.err)
	}
	o.Data = elsewhere
	r = run(t, o)
	if _, err := client(t, r.NATS).Get(t.Context(), "kept"); err != nil {
		t.Error(err)
	}
	r.stop(t)
}

// A node that waits to start again ends, too, once its data directory is gone: how much room is left there can no longer be asked.
func TestDataMovedWhileWaiting(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.NATS = "nats://" + natstest.FreeAddress(t)
	o.Data = filepath.Join(t.TempDir(), "data")
	r := launch(t, o)
	eventually(t, "it waits", func() bool { return contains(r.log, "waiting for NATS") })
	if err := os.Rename(o.Data, o.Data+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	natstest.Receive(t, "the node's end", r.done)
	if !errors.Is(r.err, node.ErrDataMoved) {
		t.Errorf("the node ended with %v", r.err)
	}
}

// A second node on the same data directory ends, and says so, even if its ports are taken, too.
func TestDataInUse(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	_, err := spawn(t, s)
	words(t, err, "the data directory is in use by another process", s.Data)
	o := s.options()
	o.HTTP, o.Listen = p.HTTP[len("http://"):], p.NATS[len("nats://"):]
	if err := refused(t, o); !errors.Is(err, node.ErrDataInUse) {
		t.Errorf("a second node ended with %v", err)
	}
	fires(t, client(t, p.NATS), "undisturbed")
	p.terminate(t)
}
