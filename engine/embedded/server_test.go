package embedded

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("EMBEDDED_TEST_HOLD"); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold runs a server on dir, prints that it is ready, and waits to be killed.
func hold(dir string) {
	s, err := Start(quiet(Options{Dir: dir, Listen: "127.0.0.1:0"}))
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	s.ns.WaitForShutdown()
}

func quiet(o Options) Options {
	o.Logger = slog.New(slog.DiscardHandler)
	return o
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	s, err := Start(quiet(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func engine(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// patient is a server that notes how long its in-process clients wait for answers.
type patient struct {
	*server.Server
	longest time.Duration
}

func (p *patient) InProcessConn() (net.Conn, error) {
	c, err := p.Server.InProcessConn()
	return &patientConn{c, p}, err
}

type patientConn struct {
	net.Conn
	of *patient
}

func (c *patientConn) SetDeadline(at time.Time) error {
	c.of.longest = max(c.of.longest, time.Until(at))
	return c.Conn.SetDeadline(at)
}

// If a server in the same process answers late, the machine is busy; the engine must not give up because of that.
func TestConnectIsPatient(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Dir: t.TempDir()})
	way := &patient{Server: s.ns}
	nc, err := s.Connect(nats.InProcessServer(way))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if way.longest < time.Minute/2 {
		t.Errorf("the server's answer is waited for for %s", way.longest)
	}
}

func client(t *testing.T, s *Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.ClientURL(), append(opts, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func stream(t *testing.T, nc *nats.Conn, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.CreateStream(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// refusedPublish reports whether the server refuses nc a publish on subject. The server answers in
// order, so the refusal has come when the flush returns.
func refusedPublish(t *testing.T, nc *nats.Conn, subject string) bool {
	t.Helper()
	if err := nc.Publish(subject, nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return refused(nc, subject)
}

func refusedSubscribe(t *testing.T, nc *nats.Conn, subject string) bool {
	t.Helper()
	if _, err := nc.SubscribeSync(subject); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return refused(nc, subject)
}

func refused(nc *nats.Conn, subject string) bool {
	err := nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`)
}

func TestClientRights(t *testing.T) {
	s := start(t, Options{})
	nc := client(t, s)

	for _, subject := range []string{
		"carillon.log.0.tick", "carillon.log.0.put.job", "carillon.log._.tick",
		"carillon.trigger.0.billing", "carillon.event.7.rejected.job", "_CARILLON.abc.1",
		"$JS.API.STREAM.CREATE.CARILLON_LOG", "$JS.API.STREAM.UPDATE.CARILLON_LOG",
		"$JS.API.STREAM.DELETE.CARILLON_LOG", "$JS.API.STREAM.PURGE.CARILLON_LOG",
		"$JS.API.STREAM.RESTORE.CARILLON_LOG", "$JS.API.STREAM.MSG.DELETE.CARILLON_LOG",
		"$JS.API.STREAM.PEER.REMOVE.CARILLON_LOG", "$JS.API.STREAM.PEER.EVACUATE.CARILLON_LOG",
		"$JS.API.STREAM.CANCEL_MOVE.CARILLON_LOG", "$JS.API.STREAM.LEADER.STEPDOWN.CARILLON_LOG",
		"$JS.API.STREAM.CREATE.CARILLON_OUT_0", "$JS.API.STREAM.UPDATE.CARILLON_OUT_7",
		"$JS.API.STREAM.DELETE.CARILLON_OUT_7", "$JS.API.STREAM.PURGE.CARILLON_OUT_3",
		"$JS.API.STREAM.RESTORE.CARILLON_OUT_3", "$JS.API.STREAM.MSG.DELETE.CARILLON_OUT_3",
		"$JS.API.CONSUMER.CREATE.CARILLON_LOG", "$JS.API.CONSUMER.CREATE.CARILLON_LOG.engine", "$JS.API.CONSUMER.CREATE.CARILLON_LOG.engine.carillon.log.>",
		"$JS.API.CONSUMER.DURABLE.CREATE.CARILLON_LOG.engine", "$JS.API.CONSUMER.DELETE.CARILLON_LOG.engine",
		"$JS.API.CONSUMER.PAUSE.CARILLON_LOG.engine", "$JS.API.CONSUMER.RESET.CARILLON_LOG.engine",
		"$JS.API.CONSUMER.UNPIN.CARILLON_LOG.engine", "$JS.API.CONSUMER.MSG.NEXT.CARILLON_LOG.engine",
		"$JS.FC.CARILLON_LOG.engine.x", "$JS.FC.dom.hash.CARILLON_LOG.engine.x",
	} {
		if !refusedPublish(t, nc, subject) {
			t.Errorf("publish on %s was let through", subject)
		}
	}
	for _, subject := range []string{
		"carillon.cmd.put.job", "carillon.api.put.job", "anything.else", "$KV.mine.key",
		"$JS.API.STREAM.CREATE.ORDERS", "$JS.API.STREAM.DELETE.ORDERS", "$JS.API.STREAM.INFO.CARILLON_LOG",
		"$JS.API.CONSUMER.CREATE.CARILLON_OUT_0.worker", "$JS.API.CONSUMER.MSG.NEXT.CARILLON_OUT_0.worker",
		"$JS.API.CONSUMER.CREATE.CARILLON_LOG.mine.carillon.log.>", "$JS.API.CONSUMER.DELETE.CARILLON_LOG.mine",
		"$JS.API.DIRECT.GET.CARILLON_OUT_0", "$JS.API.STREAM.SNAPSHOT.CARILLON_LOG",
	} {
		if refusedPublish(t, nc, subject) {
			t.Errorf("publish on %s was refused", subject)
		}
	}
	for subject, want := range map[string]bool{
		"carillon.api.>": true, "carillon.api.put.*": true, "carillon.tenant.>": true, "_CARILLON.>": true,
		"carillon.log.>": false, "carillon.trigger.>": false, "carillon.event.0.>": false, "_INBOX.x.*": false,
	} {
		if got := refusedSubscribe(t, nc, subject); got != want {
			t.Errorf("subscribe to %s: refused is %t, want %t", subject, got, want)
		}
	}
}

// The library's own answers for a service do not reach subjects that are the engine's, nor those of requests.
func TestServiceRights(t *testing.T) {
	s := start(t, Options{})
	nc, err := s.ConnectService()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for subject, want := range map[string]bool{
		"carillon.log.0.tick": true, "carillon.trigger.0.billing": true, "carillon.event.7.rejected.job": true, "carillon.cmd.fire.job": true,
		"carillon.api.snapshot": true, "_CARILLON.abc.1": true, "$JS.API.STREAM.PURGE.CARILLON_LOG": true, "$SRV.PING": true,
		"_INBOX.x.1": false, "anything.else": false,
	} {
		if got := refusedPublish(t, nc, subject); got != want {
			t.Errorf("publish on %s: refused is %t, want %t", subject, got, want)
		}
	}
}

// A subscription that is wider than what is denied is allowed, but receives nothing of that.
func TestClientHearsNoRequests(t *testing.T) {
	s := start(t, Options{Prefix: "bells"})
	nc, en := client(t, s), engine(t, s)
	sub, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"bells.api.put.x", "_CARILLON.a", "bells.cmd.put.x"} {
		if err := en.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := en.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "bells.cmd.put.x" {
		t.Errorf("a client heard %s", m.Subject)
	}
}

// More partitions than asked for are protected when their streams are found on disk.
func TestStreamsOnDiskAreProtected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data[1]") // no pattern
	s := start(t, Options{Dir: dir, Partitions: 2})
	stream(t, engine(t, s), jetstream.StreamConfig{Name: "CARILLON_OUT_11", Subjects: []string{"carillon.trigger.11.>"}})
	if refusedPublish(t, client(t, s), "$JS.API.STREAM.PURGE.CARILLON_OUT_11") {
		t.Fatal("CARILLON_OUT_11 was protected before it was there: this test shows nothing")
	}
	s.Shutdown()
	s = start(t, Options{Dir: dir, Partitions: 11})
	if !refusedPublish(t, client(t, s), "$JS.API.STREAM.PURGE.CARILLON_OUT_11") {
		t.Error("CARILLON_OUT_11 can be purged by a client")
	}
}

// A client cannot take the engine's consumer by naming it in the body of an allowed request.
func TestConsumerNamedInBody(t *testing.T) {
	s := start(t, Options{})
	stream(t, engine(t, s), jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	for _, name := range []string{"name", "durable_name"} {
		m, err := client(t, s).Request("$JS.API.CONSUMER.CREATE.CARILLON_LOG.mine",
			[]byte(`{"stream_name":"CARILLON_LOG","config":{"`+name+`":"engine","ack_policy":"none"}}`), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		// The server either uses the name in the subject, or refuses.
		if got := string(m.Data); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"name":"mine"`) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// What the rights cannot stop, as doc.go says: the server publishes for a client without checking its rights.
func TestServerPublishesForAnyone(t *testing.T) {
	const target = "carillon.log.0.tick"
	for name, attack := range map[string]func(t *testing.T, nc *nats.Conn){
		"republish": func(t *testing.T, nc *nats.Conn) {
			stream(t, nc, jetstream.StreamConfig{
				Name: "MINE", Subjects: []string{"mine"},
				RePublish: &jetstream.RePublish{Source: "mine", Destination: target},
			})
		},
		"deliver_subject": func(t *testing.T, nc *nats.Conn) {
			stream(t, nc, jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine"}})
			_, err := nc.Request("$JS.API.CONSUMER.CREATE.MINE",
				[]byte(`{"stream_name":"MINE","config":{"deliver_subject":"`+target+`","ack_policy":"none"}}`), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
		},
		"reply of a direct get": func(t *testing.T, nc *nats.Conn) {
			stream(t, nc, jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine"}, AllowDirect: true})
			if _, err := nc.Request("mine", []byte("forged"), 5*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishRequest("$JS.API.DIRECT.GET.MINE", target, []byte(`{"seq":1}`)); err != nil {
				t.Fatal(err)
			}
		},
		"reply of a pull": func(t *testing.T, nc *nats.Conn) {
			st := stream(t, nc, jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine"}})
			if _, err := st.CreateConsumer(context.Background(), jetstream.ConsumerConfig{Durable: "c"}); err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.MINE.c", target, nil); err != nil {
				t.Fatal(err)
			}
		},
		"reply of a publish ack": func(t *testing.T, nc *nats.Conn) {
			stream(t, nc, jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine"}})
			if err := nc.PublishRequest("mine", target, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Options{})
			en, nc := engine(t, s), client(t, s)
			stream(t, en, jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
			sub, err := en.SubscribeSync(target)
			if err != nil {
				t.Fatal(err)
			}
			if err := en.Flush(); err != nil {
				t.Fatal(err)
			}
			attack(t, nc)
			if err := nc.Publish("mine", []byte("forged")); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.NextMsg(5 * time.Second); err != nil {
				t.Fatalf("the server no longer publishes for a client here: doc.go can promise more (%v)", err)
			}
		})
	}
}

func TestClientsWaitForListen(t *testing.T) {
	address := natstest.FreeAddress(t)
	s := start(t, Options{Listen: address})
	if !s.gated {
		t.Error("the default server says clients can come in early")
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Fatal("the port is open before Listen")
	}
	engine(t, s)
	for range 2 {
		if err := s.Listen(); err != nil {
			t.Fatal(err)
		}
	}
	if want := "nats://" + address; s.ClientURL() != want {
		t.Errorf("ClientURL is %s, want %s", s.ClientURL(), want)
	}
	client(t, s)
}

// Port 0 takes a free port, not the default one.
func TestAnyPort(t *testing.T) {
	urls := make(map[string]bool)
	for range 2 {
		s := start(t, Options{})
		client(t, s)
		urls[s.ClientURL()] = true
	}
	if len(urls) != 2 {
		t.Errorf("two servers listen on %v", urls)
	}
}

// The engine's key is of no use on a socket.
func TestEngineOnlyInProcess(t *testing.T) {
	s := start(t, Options{})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	pub, err := s.key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.ClientURL(), nats.Nkey(pub, s.key.Sign))
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("connected over TCP as the engine: %v, %v", nc, err)
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Listen: l.Addr().String()})
	err = s.Listen()
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "is another server") {
		t.Errorf("error does not name the address: %v", err)
	}
	elsewhere := start(t, Options{Listen: "192.0.2.1:4222"})
	if err := elsewhere.Listen(); err == nil || !strings.Contains(err.Error(), "192.0.2.1:4222") || strings.Contains(err.Error(), "is another server") {
		t.Errorf("an address of another machine: %v", err)
	}
	l.Close()
	if err := s.Listen(); err != nil {
		t.Errorf("the port is free again, but: %v", err)
	}
}

func TestDirInUse(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "EMBEDDED_TEST_HOLD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != "held\n" {
		t.Fatalf("the other process said %q, %v", line[:n], err)
	}
	if _, err := Start(quiet(Options{Dir: dir})); !errors.Is(err, ErrDirInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second process on the directory got %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	start(t, Options{Dir: dir}).Shutdown()
	start(t, Options{Dir: dir})
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"Dir is required":                {},
		"Partitions is -1":               {Dir: "x", Partitions: -1},
		"Partitions is 1025":             {Dir: "x", Partitions: 1025},
		`Prefix "a.b"`:                   {Dir: "x", Prefix: "a.b"},
		`Prefix "a*"`:                    {Dir: "x", Prefix: "a*"},
		`Prefix "$JS"`:                   {Dir: "x", Prefix: "$JS"},
		`StreamPrefix "A B"`:             {Dir: "x", StreamPrefix: "A B"},
		`Listen "4222" is not host:port`: {Dir: "x", Listen: "4222"},
		`Listen "h:70000"`:               {Dir: "x", Listen: "h:70000"},
		`Listen "h:-1"`:                  {Dir: "x", Listen: "h:-1"},
		"need a ConfigFile":              {Dir: "x", Account: "A"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error is %v, want %s", o, err, want)
		}
		if _, err := Start(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start(%+v): error is %v, want %s", o, err, want)
		}
	}
	if err := (Options{Dir: "x"}).Validate(); err != nil {
		t.Error(err)
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// If nothing is wrong, there are no warnings: not even about the default client's password, which is empty.
func TestPlainStartWarnsOfNothing(t *testing.T) {
	var mu sync.Mutex
	var lines bytes.Buffer
	warnings := slog.New(slog.NewTextHandler(lockedWriter{&mu, &lines}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := Start(Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: warnings})
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	mu.Lock()
	defer mu.Unlock()
	if lines.Len() > 0 {
		t.Errorf("the log has:\n%s", lines.String())
	}
}

// Errors on the engine's connection are in the engine's log, in its format and at its level. The server's banner is not.
func TestConnectionErrorsAreLogged(t *testing.T) {
	var mu sync.Mutex
	var lines bytes.Buffer
	s, err := Start(Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.NewJSONHandler(lockedWriter{&mu, &lines}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	nc := engine(t, s)
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(1, -1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := nc.Publish("x", nil); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "the log tells of a slow consumer", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(lines.String(), nats.ErrSlowConsumer.Error())
	})
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(lines.String(), "|_") || strings.Contains(lines.String(), `"msg":""`) {
		t.Error("the log has the banner")
	}
}

// A client that publishes what it may not, again and again, does not fill the log; all other errors are logged.
func TestClientErrorsAreHeldBack(t *testing.T) {
	var mu sync.Mutex
	var lines bytes.Buffer
	s, err := Start(Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &lines}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	nc := client(t, s, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	for range 1000 {
		if err := nc.Publish("carillon.log.0.put.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s.log.Errorf("JetStream failed on %q", "a disk")
	}
	mu.Lock()
	defer mu.Unlock()
	said := lines.String()
	if n := strings.Count(said, "Publish Violation"); n < 1 || n > clientErrors {
		t.Errorf("%d forbidden publishes are told", n)
	}
	if n := strings.Count(said, "JetStream failed"); n != 20 {
		t.Errorf("%d of 20 other errors are told", n)
	}
}

// However many clients there are, the engine can still open files.
func TestClientsLeaveFiles(t *testing.T) {
	for files, want := range map[uint64]int{0: 0, 100: 50, 20_000: 20_000 - ownFiles, 1 << 20: server.DEFAULT_MAX_CONNECTIONS, 1 << 63: server.DEFAULT_MAX_CONNECTIONS} {
		if got := maxClients(files); got != want {
			t.Errorf("of %d files clients get %d, want %d", files, got, want)
		}
	}
	v, err := start(t, Options{}).ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := maxClients(openFiles()); v.MaxConn != want {
		t.Errorf("the server takes %d connections, want %d", v.MaxConn, want)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	to io.Writer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
