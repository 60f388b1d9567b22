package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// key returns a key pair and its public key.
func key(t *testing.T, pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return pair, public
}

// secret writes what make returns for a user's seed to a file, and returns the file's path.
func secret(t *testing.T, pair nkeys.KeyPair, make func(seed []byte) ([]byte, error)) string {
	t.Helper()
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	content, err := make(seed)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// connects tells whether a command with these flags connects to the server.
func connects(t *testing.T, flags ...string) bool {
	t.Helper()
	a := &app{}
	c := newRootCommand(a)
	if err := c.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	nc, _, err := a.connect(t.Context())
	if err != nil {
		t.Log(err)
		return false
	}
	nc.Close()
	return true
}

// A command that runs until it is interrupted goes on even if its credentials are refused for a while, and tells of that.
func TestReconnectForever(t *testing.T) {
	users := func(password string) *natsserver.Options {
		return &natsserver.Options{Users: []*natsserver.User{{Username: "u", Password: password}}}
	}
	before := users("p")
	ns := natstest.Start(t, before)
	var errOut bytes.Buffer
	var mu sync.Mutex
	a := &app{connection: connection{server: ns.ClientURL(), user: "u", password: "p"}, stderr: &errOut}
	refused := make(chan struct{}, 100)
	nc, _, err := a.connect(t.Context(), append(append(a.tellConnection(t.Context(), &mu), reconnectForever...), nats.ReconnectWait(time.Millisecond), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrAuthorization) {
			refused <- struct{}{}
		}
	}))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	comes := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	other := before.Clone() // with the port, which the server has put into its options
	other.Users = users("q").Users
	if err := ns.ReloadOptions(other); err != nil { // which ends the connection
		t.Fatal(err)
	}
	for range 3 {
		<-refused
	}
	again := other.Clone()
	again.Users = users("p").Users
	if err := ns.ReloadOptions(again); err != nil {
		t.Fatal(err)
	}
	if status := <-comes; status != nats.CONNECTED {
		t.Errorf("%s: %v", status, nc.LastError())
	}
	natstest.Eventually(t, "it tells that it was lost and is there again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		lost, again, both := strings.Cut(errOut.String(), "\n")
		return both && strings.HasPrefix(lost, "carillon: the connection to NATS is lost (") && again == "carillon: connected to NATS again\n"
	})
}

// A user without a password is a token.
func TestConnectWithToken(t *testing.T) {
	url := natstest.Start(t, &natsserver.Options{Authorization: "token"}).ClientURL()
	if !connects(t, "--server", url, "--user", "token") {
		t.Error("the token is not let in")
	}
	if connects(t, "--server", url, "--user", "other") || connects(t, "--server", url, "--user", "token", "--password", "token") {
		t.Error("somebody else is let in")
	}
}

func TestConnectWithNKey(t *testing.T) {
	pair, err := nkeys.CreateUser()
	user, public := key(t, pair, err)
	pair, err = nkeys.CreateUser()
	stranger, _ := key(t, pair, err)
	url := natstest.Start(t, &natsserver.Options{Nkeys: []*natsserver.NkeyUser{{Nkey: public}}}).ClientURL()
	same := func(seed []byte) ([]byte, error) { return seed, nil }
	if !connects(t, "--server", url, "--nkey", secret(t, user, same)) {
		t.Error("the user is not let in")
	}
	if connects(t, "--server", url, "--nkey", secret(t, stranger, same)) || connects(t, "--server", url) {
		t.Error("somebody else is let in")
	}
}

func TestConnectWithCredentials(t *testing.T) {
	pair, err := nkeys.CreateOperator()
	operator, _ := key(t, pair, err)
	pair, err = nkeys.CreateAccount()
	account, accountID := key(t, pair, err)
	pair, err = nkeys.CreateUser()
	user, userID := key(t, pair, err)

	accountJWT, err := jwt.NewAccountClaims(accountID).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	_, operatorID := key(t, operator, nil)
	resolver := &natsserver.MemAccResolver{}
	if err := resolver.Store(accountID, accountJWT); err != nil {
		t.Fatal(err)
	}
	url := natstest.Start(t, &natsserver.Options{TrustedKeys: []string{operatorID}, AccountResolver: resolver}).ClientURL()
	creds := func(of nkeys.KeyPair) func([]byte) ([]byte, error) {
		return func(seed []byte) ([]byte, error) {
			token, err := jwt.NewUserClaims(userID).Encode(of)
			if err != nil {
				return nil, err
			}
			return jwt.FormatUserConfig(token, seed)
		}
	}
	if !connects(t, "--server", url, "--creds", secret(t, user, creds(account))) {
		t.Error("the user is not let in")
	}
	pair, err = nkeys.CreateAccount()
	other, _ := key(t, pair, err)
	if connects(t, "--server", url, "--creds", secret(t, user, creds(other))) || connects(t, "--server", url) {
		t.Error("somebody else is let in")
	}
}

// A user that may hear only the answers under its own prefix gets them there.
func TestInboxPrefix(t *testing.T) {
	may := &natsserver.Permissions{Subscribe: &natsserver.SubjectPermission{Allow: []string{"_INBOX_ann.>"}}}
	ns := natstest.Start(t, &natsserver.Options{Users: []*natsserver.User{{Username: "ann", Password: "p", Permissions: may}, {Username: "service", Password: "p"}}})
	service, err := nats.Connect(ns.ClientURL(), nats.UserInfo("service", "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	_, err = service.Subscribe("question", func(m *nats.Msg) { _ = m.Respond(nil) })
	if err == nil {
		err = service.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	a := &app{}
	if err := newRootCommand(a).ParseFlags([]string{"-s", ns.ClientURL(), "--user", "ann", "--password", "p", "--inbox-prefix", "_INBOX_ann"}); err != nil {
		t.Fatal(err)
	}
	nc, _, err := a.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("question", nil, 10*time.Second); err != nil {
		t.Error(err)
	}
	for _, prefix := range []string{"a.*", "a.", "a..b", "a b", ">"} {
		a.connection.inboxPrefix = prefix
		if _, _, err := a.connect(t.Context()); err == nil || !strings.Contains(err.Error(), "--inbox-prefix") {
			t.Errorf("with the prefix %q: %v", prefix, err)
		}
	}
}

// A server with TLSHandshakeFirst sends nothing before the handshake. A client without --tlsfirst waits for the server's first message.
func TestConnectTLSFirst(t *testing.T) {
	dir := t.TempDir()
	natstest.NewAuthority(t, dir).Issue("server")
	file := func(name string) string { return filepath.Join(dir, name) }
	config, err := natsserver.GenTLSConfig(&natsserver.TLSConfigOpts{CertFile: file("server.crt"), KeyFile: file("server.key")})
	if err != nil {
		t.Fatal(err)
	}
	url := natstest.Start(t, &natsserver.Options{TLSConfig: config, TLSHandshakeFirst: true, TLSTimeout: 2}).ClientURL()
	if !connects(t, "-s", url, "--tlsca", file("ca.crt"), "--tlsfirst") {
		t.Error("there is no connection")
	}
}

// An engine that bench starts has no users. Credentials in the environment are for another service: neither bench nor its processes may
// use them.
func TestBenchHasNoCredentials(t *testing.T) {
	t.Setenv("NATS_USER", "me")
	t.Setenv("NATS_CA", "/etc/ca.crt")
	for url, want := range map[string]string{"nats://127.0.0.1:1": "me", "": ""} {
		a := &app{}
		if _, err := a.service(newRootCommand(a), "", url); err != nil {
			t.Fatal(err)
		}
		if a.connection.user != want {
			t.Errorf("with the NATS %q the user is %q", url, a.connection.user)
		}
		t.Setenv("NATS_USER", "me")
	}
	a := &app{}
	if _, err := a.service(newRootCommand(a), "", ""); err != nil || os.Getenv("NATS_USER") != "" || os.Getenv("NATS_CA") != "" {
		t.Errorf("its processes find %q and %q, %v", os.Getenv("NATS_USER"), os.Getenv("NATS_CA"), err)
	}
}

// An engine's connections have names and times of their own, not those of a command.
func TestServeConnections(t *testing.T) {
	t.Setenv("NATS_TIMEOUT", "1h")
	ns := natstest.Start(t, &natsserver.Options{JetStream: true})
	ctx, stop := context.WithCancel(t.Context())
	var names []string
	var errOut bytes.Buffer
	code := Run(ctx, []string{"serve", "--data", t.TempDir(), "--http", "off", "--partitions", "1", "--nats", ns.ClientURL(), "--name", "one"},
		strings.NewReader(""), writerFunc(func(b []byte) (int, error) { // it is ready
			z, err := ns.Connz(nil)
			if err != nil {
				t.Error(err)
			}
			for _, c := range z.Conns {
				names = append(names, c.Name)
			}
			stop()
			return len(b), nil
		}), &errOut)
	if code != exitOK {
		t.Errorf("serve ended with %d:\n%s", code, &errOut)
	}
	for _, want := range []string{"carillon one", "carillon one requests"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no connection %q among %q", want, names)
		}
	}

	var c connection
	if err := c.resolve(); err != nil {
		t.Fatal(err)
	}
	list, err := c.options()
	if err != nil {
		t.Fatal(err)
	}
	o := nats.GetDefaultOptions()
	for _, option := range list {
		if err := option(&o); err != nil {
			t.Fatal(err)
		}
	}
	if o.Timeout != nats.DefaultTimeout {
		t.Errorf("an engine gives a server %s to greet it, as long as a command waits for an answer", o.Timeout)
	}
	if code, _, says := run(t, "serve", "--timeout", "1s", "--partitions", "0"); code != exitUsage || !strings.Contains(says, "--timeout is for clients") {
		t.Errorf("serve --timeout: %d, %s", code, says)
	}
}
