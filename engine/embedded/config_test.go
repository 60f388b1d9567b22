package embedded

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Whatever a configuration file says about users, the engine gets in and its streams work.
func TestConfigFile(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		account string
		user    []nats.Option // a client that the file lets in
		bare    bool          // a client without credentials gets in, with the default rights
	}{
		"no authorization":           {bare: true},
		"no authorization, a domain": {text: `jetstream { domain: hub }`, bare: true},
		"single user": {
			text: `authorization { user: u, password: p }`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
		"token": {
			text: `authorization { token: t }`,
			user: []nats.Option{nats.Token("t")},
		},
		"users": {
			text: `authorization { users: [ {user: u, password: p, permissions: {publish: "x"}} ] }`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
		"one account": {
			text: `accounts { A: { jetstream: enabled, users: [{user: u, password: p}] }, SYS: { users: [{user: s, password: p}] } }
			       system_account: SYS`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
		"one account beside $SYS": {
			text: `accounts { A: { jetstream: enabled, users: [{user: u, password: p}] }, $SYS: { users: [{user: s, password: p}] } }`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
		"named account": {
			text: `accounts { A: { jetstream: enabled, users: [{user: u, password: p}] }, B: { users: [{user: s, password: p}] } }`,
			user: []nats.Option{nats.UserInfo("u", "p")}, account: "A",
		},
		"account of no_auth_user": {
			text: `accounts { A: { jetstream: enabled, users: [{user: u, password: p}] }, B: { users: [{user: s, password: p}] } }
			       no_auth_user: u`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
		"no_auth_user without an account": {
			text: `authorization { users: [ {user: u, password: p} ] }
			       no_auth_user: u`,
			user: []nats.Option{nats.UserInfo("u", "p")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeConfig(t, "listen: 127.0.0.1:-1\n"+c.text)
			s := start(t, Options{ConfigFile: file, Account: c.account})
			st := stream(t, engine(t, s), jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
			if err := s.Listen(); err != nil {
				t.Fatal(err)
			}
			if c.bare {
				nc := client(t, s)
				if !refusedPublish(t, nc, "carillon.log.0.tick") {
					t.Error("a file without authorization drops the default rights")
				}
				// By the name of a domain the log is no less protected: what nats-server maps that to is refused.
				for _, request := range []string{"STREAM.DELETE.CARILLON_LOG", "STREAM.MSG.DELETE.CARILLON_OUT_7", "CONSUMER.CREATE.CARILLON_LOG.engine.carillon.>"} {
					if !strings.Contains(c.text, "domain: hub") {
						break
					}
					if refusedPublish(t, nc, "$JS.hub.API."+request); !refused(nc, "$JS.API."+request) {
						t.Errorf("by the name of the domain one may %s", request)
					}
				}
				return
			}
			if !strings.Contains(c.text, "no_auth_user") {
				if _, err := nats.Connect(s.ClientURL()); err == nil {
					t.Error("a client without credentials got in")
				}
			}
			nc := client(t, s, c.user...)
			if name == "users" {
				if !refusedPublish(t, nc, "carillon.log.0.tick") {
					t.Error("a user published what the file forbids it")
				}
				return
			}
			// The file's user is in the engine's account, so what it publishes arrives.
			if _, err := nc.Request("carillon.log.0.tick", nil, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			info, err := st.Info(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if info.State.LastSeq != 1 {
				t.Errorf("the log's last sequence is %d, want 1", info.State.LastSeq)
			}
		})
	}
}

func TestConfigFileErrors(t *testing.T) {
	for name, c := range map[string]struct {
		text, account, want string
	}{
		"syntax":         {text: "listen: {", want: "nats.conf"},
		"unknown field":  {text: "listn: 1", want: `"listn"`},
		"no account":     {text: "accounts { A: {} }", account: "B", want: `no account "B"`},
		"which account":  {text: "accounts { A: {}, B: {} }", want: "has 2 accounts"},
		"no jetstream":   {text: "accounts { A: { users: [{user: u, password: p}] } }", want: "JetStream of the engine's account"},
		"operator, bare": {text: "operator: " + operatorJWT(t), want: "credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeConfig(t, c.text)
			s, err := Start(quiet(Options{Dir: t.TempDir(), ConfigFile: file, Account: c.account}))
			if err == nil {
				s.Shutdown()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %s", err, c.want)
			}
		})
	}
	if _, err := Start(quiet(Options{Dir: t.TempDir(), ConfigFile: "/nowhere.conf"})); err == nil || !strings.Contains(err.Error(), "/nowhere.conf") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// verify_and_map takes users from certificates, but a pipe in memory has no certificate.
func TestConfigCertificates(t *testing.T) {
	dir := t.TempDir()
	natstest.NewAuthority(t, dir).Issue("client")
	ca, cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	file := writeConfig(t, fmt.Sprintf(`
		listen: 127.0.0.1:-1
		tls { cert_file: %q, key_file: %q, ca_file: %q, verify_and_map: true }
		authorization { users: [ {user: "CN=client"} ] }`, cert, key, ca))
	s := start(t, Options{ConfigFile: file})
	stream(t, engine(t, s), jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	client(t, s, nats.RootCAs(ca), nats.ClientCert(cert, key))
}

// A user who is identified only by a certificate does not get in through another port without one, by a name that anybody may guess.
func TestConfigCertificatesElsewhere(t *testing.T) {
	dir := t.TempDir()
	natstest.NewAuthority(t, dir).Issue("client")
	file := writeConfig(t, fmt.Sprintf(`
		listen: 127.0.0.1:-1
		tls { cert_file: %q, key_file: %q, ca_file: %q, verify_and_map: true }
		websocket { listen: 127.0.0.1:-1, no_tls: true }
		authorization { users: [ {user: "CN=client"}, {user: u, password: p} ] }`,
		filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"), filepath.Join(dir, "ca.crt")))
	s := start(t, Options{ConfigFile: file})
	for user, password := range map[string]string{"u": "p", "CN=client": ""} {
		nc, err := nats.Connect(s.ns.WebsocketURL(), nats.UserInfo(user, password))
		if (err == nil) != (password != "") {
			t.Errorf("%s comes with the password %q: %v", user, password, err)
		}
		if err == nil {
			nc.Close()
		}
	}
}

// With other ports clients may come in before Listen: Gated says so, and if certificates name users, the server listens at once.
func TestConfigDoors(t *testing.T) {
	dir := t.TempDir()
	natstest.NewAuthority(t, dir).Issue("client")
	mapped := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify_and_map: true }\n",
		filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"), filepath.Join(dir, "ca.crt"))
	for _, door := range []string{"websocket { listen: 127.0.0.1:-1, no_tls: true }", "mqtt { listen: 127.0.0.1:-1 }", "leafnodes { listen: 127.0.0.1:-1 }"} {
		text := "listen: 127.0.0.1:-1\nserver_name: bells\n" + door + "\n"
		if s := start(t, Options{ConfigFile: writeConfig(t, text)}); s.gated {
			t.Errorf("%s: it says that clients are kept out", door)
		}
		if s := start(t, Options{ConfigFile: writeConfig(t, text+mapped)}); s.ns.Addr() == nil {
			t.Errorf("%s: it does not listen", door)
		}
	}
}

func TestConfigOperator(t *testing.T) {
	okp, akp, ukp := keyPair(t, nkeys.CreateOperator), keyPair(t, nkeys.CreateAccount), keyPair(t, nkeys.CreateUser)
	skp := keyPair(t, nkeys.CreateAccount)
	sysJWT := encode(t, jwt.NewAccountClaims(public(t, skp)), okp)
	oc := jwt.NewOperatorClaims(public(t, okp))
	ac := jwt.NewAccountClaims(public(t, akp))
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1, MemoryMaxStreamBytes: -1, DiskMaxStreamBytes: -1,
	}
	uc := jwt.NewUserClaims(public(t, ukp))
	opJWT, accJWT, userJWT := encode(t, oc, okp), encode(t, ac, okp), encode(t, uc, akp)

	seed, err := ukp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(userJWT, seed)
	if err != nil {
		t.Fatal(err)
	}
	credsFile := filepath.Join(t.TempDir(), "engine.creds")
	if err := os.WriteFile(credsFile, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	file := writeConfig(t, fmt.Sprintf("listen: 127.0.0.1:-1\noperator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		opJWT, public(t, skp), public(t, akp), accJWT, public(t, skp), sysJWT))
	s := start(t, Options{ConfigFile: file, Credentials: credsFile})
	own := engine(t, s)
	stream(t, own, jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	own.Close()
	client(t, s, nats.UserCredentials(credsFile))

	// While its credentials are refused, the engine tries again and again.
	nc, err := s.Connect(nats.InProcessServer(socket(s.ns.Addr().String())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	account, err := s.ns.LookupAccount(public(t, akp))
	if err != nil {
		t.Fatal(err)
	}
	comes := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	ac.Revoke(public(t, ukp))
	s.ns.UpdateAccountClaims(account, ac)
	before := connections(t, s)
	natstest.Eventually(t, "the engine has tried five times", func() bool { return connections(t, s) >= before+5 || nc.IsClosed() })
	ac.ClearRevocation(public(t, ukp))
	s.ns.UpdateAccountClaims(account, ac)
	if status := <-comes; status != nats.CONNECTED {
		t.Errorf("%s: %v", status, nc.LastError())
	}
}

// socket replaces the pipe by an address: in a pipe the error of a refused connection may be lost.
type socket string

func (s socket) InProcessConn() (net.Conn, error) { return net.Dial("tcp", string(s)) }

// connections is how many connections there have been so far.
func connections(t *testing.T, s *Server) uint64 {
	t.Helper()
	v, err := s.ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	return v.TotalConnections
}

// The bounds in a configuration file hold.
func TestConfigBounds(t *testing.T) {
	dir := t.TempDir()
	file := writeConfig(t, fmt.Sprintf("listen: 127.0.0.1:-1\nmax_connections: 77\njetstream { store_dir: %q, max_file_store: 64MB, max_memory_store: 32MB }", dir))
	s := start(t, Options{ConfigFile: file})
	bounds, err := s.ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	if js := bounds.JetStream.Config; bounds.MaxConn != 77 || js.MaxStore != 64<<20 || js.MaxMemory != 32<<20 || !strings.HasPrefix(js.StoreDir, dir) {
		t.Errorf("%d connections, %+v", bounds.MaxConn, js)
	}
}

// Streams that are encrypted with another key are named in the error, and are there again with the right key.
func TestConfigKey(t *testing.T) {
	dir := t.TempDir()
	with := func(jetStream string) Options {
		return Options{Dir: dir, ConfigFile: writeConfig(t, "listen: 127.0.0.1:-1\njetstream { "+jetStream+" }")}
	}
	log := jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}}
	s := start(t, with("key: first"))
	nc := engine(t, s)
	stream(t, nc, log)
	if _, err := nc.Request("carillon.log.0.tick", nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	for _, wrong := range []string{"", "key: second"} {
		if _, err := Start(with(wrong)); err == nil || !strings.Contains(err.Error(), "CARILLON_LOG: it is encrypted, with another key") {
			t.Errorf("with %q it ended with %v", wrong, err)
		}
	}
	for _, right := range []string{"key: first", "key: second, prev_key: first"} {
		s := start(t, with(right))
		if n := stream(t, engine(t, s), log).CachedInfo().State.Msgs; n != 1 {
			t.Errorf("with %q the stream has %d messages", right, n)
		}
		s.Shutdown()
	}
}

// An auth callout asks nobody about the engine.
func TestConfigAuthCallout(t *testing.T) {
	file := writeConfig(t, fmt.Sprintf(`
		listen: 127.0.0.1:-1
		authorization { users: [ {user: u, password: p} ], auth_callout { issuer: %s, auth_users: [ u ] } }`,
		public(t, keyPair(t, nkeys.CreateAccount))))
	s := start(t, Options{ConfigFile: file})
	stream(t, engine(t, s), jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	client(t, s, nats.UserInfo("u", "p"))
}

// A clustered server opens its port in Start, says so, and shuts down.
func TestConfigCluster(t *testing.T) {
	file := writeConfig(t, `
		listen: 127.0.0.1:-1
		server_name: one
		cluster { name: c, listen: 127.0.0.1:-1, routes: [ "nats://`+natstest.FreeAddress(t)+`" ] }`)
	s := start(t, Options{ConfigFile: file})
	if s.gated {
		t.Error("a clustered server says its clients wait for Listen")
	}
	client(t, s)
	engine(t, s)
}

func operatorJWT(t *testing.T) string {
	kp := keyPair(t, nkeys.CreateOperator)
	return encode(t, jwt.NewOperatorClaims(public(t, kp)), kp)
}

func keyPair(t *testing.T, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	kp, err := create()
	if err != nil {
		t.Fatal(err)
	}
	return kp
}

func public(t *testing.T, kp nkeys.KeyPair) string {
	t.Helper()
	pub, err := kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func encode(t *testing.T, c jwt.Claims, by nkeys.KeyPair) string {
	t.Helper()
	s, err := c.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
