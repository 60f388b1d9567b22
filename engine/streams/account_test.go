package streams

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// serverOf runs a nats-server on a configuration.
func serverOf(t *testing.T, config string) *server.Server {
	t.Helper()
	return natstest.Start(t, natstest.ParseOptions(t, config))
}

func connectTo(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// refuses opens streams and wants an error that contains all of these texts.
func refuses(t *testing.T, nc *nats.Conn, cfg Config, want ...string) error {
	t.Helper()
	s, err := Open(t.Context(), nc, cfg)
	if err == nil {
		s.Close()
		t.Fatalf("opened, want an error with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error is\n%v\nwhich does not say %q", err, w)
		}
	}
	return err
}

func TestNoJetStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, want string }{
		"server":  {`server_name: bare`, "nats-server bare, which stands alone"},
		"account": {`jetstream: {}, accounts { A: { users: [{user: u, password: p}] } }, no_auth_user: u`, "for the account of the engine's user"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refuses(t, connectTo(t, serverOf(t, c.config).ClientURL()), Config{}, c.want); !errors.Is(err, ErrNoJetStream) {
				t.Errorf("%v is not ErrNoJetStream", err)
			}
		})
	}
}

// A server of a cluster (a leaf node is one of its own) may be without JetStream: other servers have it, and may come back.
func TestNoJetStreamInCluster(t *testing.T) {
	t.Parallel()
	nc := connectTo(t, serverOf(t, `server_name: bare, cluster { name: C, listen: "127.0.0.1:-1" }`).ClientURL())
	err := refuses(t, nc, Config{}, "JetStream does not answer by way of nats-server bare, which has none itself", "default_js_domain")
	if !errors.Is(err, ErrDisconnected) {
		t.Errorf("%v is not ErrDisconnected", err)
	}
}

// olderServer is a proxy for a real server that reports another version.
func olderServer(t *testing.T, ns *server.Server, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", ns.Addr().String())
			if err != nil {
				in.Close()
				return
			}
			go func() {
				_, _ = io.Copy(out, in) // ends with the connection
				out.Close()
			}()
			go func() {
				defer in.Close()
				r := bufio.NewReader(out)
				for {
					line, err := r.ReadString('\n')
					if strings.HasPrefix(line, "INFO ") { // more of them may come later
						line = strings.Replace(line, `"version":"`+server.VERSION+`"`, `"version":"`+version+`"`, 1)
					}
					if _, failed := io.WriteString(in, line); err != nil || failed != nil {
						return
					}
				}
			}()
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestServerTooOld(t *testing.T) {
	t.Parallel()
	ns := serverOf(t, `jetstream: {}`)
	refuses(t, connectTo(t, olderServer(t, ns, "2.11.9")), Config{}, "nats-server is 2.11.9", "must be 2.12 or newer")
	open(t, connectTo(t, olderServer(t, ns, "2.12.0")), Config{})

	// Another server may lead JetStream, and reports its own API level.
	bare := connectTo(t, serverOf(t, `server_name: bare`).ClientURL())
	leader := func(m *nats.Msg) { _ = m.Respond([]byte(`{"api":{"level":1}}`)) }
	if _, err := bare.Subscribe("$JS.API.INFO", leader); err != nil {
		t.Fatal(err)
	}
	refuses(t, bare, Config{}, "leads JetStream has API level 1", "must be 2.12 or newer")
}

// If streams cannot be made, the error has the limits that matter.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	const user = `users: [{user: u, password: p}]}}, no_auth_user: u`
	for name, c := range map[string]struct {
		config string
		cfg    Config
		want   []string
	}{
		"account's storage": {
			`jetstream: {max_file_store: 10G}, accounts { A: { jetstream: {max_file: 300MiB}, ` + user,
			Config{Bucket: 64 << 20},
			[]string{"CARILLON_OUT_", "insufficient storage resources", "10 of them, need 1 × 832 MiB of storage", "the account may use 300 MiB"},
		},
		"account's streams": {
			`jetstream: {max_file_store: 10G}, accounts { A: { jetstream: {max_streams: 3}, ` + user,
			Config{},
			[]string{"CARILLON_OUT_3", "maximum number of streams", "9 of them", "may have 3 streams and has 3"},
		},
		"server's storage": {
			`jetstream: {max_file_store: 300M}`,
			Config{},
			[]string{"CARILLON_OUT_1", "with 1 replicas and 64 MiB", "need 1 × 768 MiB", "max_file_store leaves too little (an embedded server's is the size of its disk"},
		},
		"three replicas on one server": {
			`server_name: lonely, jetstream: {max_file_store: 10G}`,
			Config{Replicas: 3},
			[]string{"CARILLON_LOG, with 3 replicas and 256 MiB", "not supported in non-clustered mode", "nats-server lonely stands alone"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuses(t, connectTo(t, serverOf(t, c.config).ClientURL()), c.cfg, c.want...)
		})
	}
}

// Each right that is needed is named if it is missing, whatever other rights there are.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	cfg := Config{Partitions: 2, Rights: Rights{Subscribe: []string{"carillon.api.>"}, Answer: true}}
	need := cfg.withDefaults().rights("_INBOX").and(cfg.Rights)
	list := func(subjects []string, without string) string {
		all := slices.DeleteFunc(append([]string{userInfo}, subjects...), func(s string) bool { return s == without })
		return `["` + strings.Join(all, `", "`) + `"]`
	}
	connect := func(t *testing.T, publish, subscribe, more string) *nats.Conn {
		return connectTo(t, serverOf(t, fmt.Sprintf(`jetstream: {max_file_store: 10G}, authorization { users: [
			{user: engine, password: p, permissions: {publish: %s, subscribe: %s, %s}} ] }`,
			publish, subscribe, more)).ClientURL(), nats.UserInfo("engine", "p"))
	}
	const responses = `allow_responses: {max: 1000, expires: "10m"}`
	allow := func(list string) string { return "{allow: " + list + "}" }

	open(t, connect(t, allow(list(need.Publish, "")), allow(list(need.Subscribe, "")), responses), cfg)
	for _, s := range need.Publish {
		refuses(t, connect(t, allow(list(need.Publish, s)), `">"`, responses), cfg, `the user "engine" of account "$G"`, "may not publish on "+s)
	}
	refuses(t, connect(t, allow(list(need.Publish, "")), `"_INBOX.>"`, responses), cfg, "may not subscribe to carillon.api.>")
	refuses(t, connect(t, allow(list(need.Publish, "")), `">"`, ""), cfg, "may not answer requests", "allow_responses")
	refuses(t, connect(t, allow(list(need.Publish, "")), `">"`, "allow_responses: true"), cfg, "may not answer requests", "max 1000")
	refuses(t, connect(t, `{deny: "carillon.trigger.1.billing"}`, `">"`, ""), cfg, "may not publish on carillon.trigger.>")
	refuses(t, connect(t, `{allow: "carillon.>", deny: "$JS.>"}`, `">"`, ""), cfg, userInfo) // which says nothing itself
	refuses(t, connect(t, `">"`, `{deny: "_INBOX.>"}`, ""), cfg, "_INBOX.")

	// If many are missing, the first are named, and the others counted.
	refuses(t, connect(t, allow(list(nil, "")), `">"`, ""), cfg, "may not publish on carillon.cmd.*.*", "and ")
}

// Behind a leaf node both servers answer what the user may do: the engine's own server about the engine, and the hub about the leaf node,
// which may not use JetStream without naming its domain.
func TestRightsBehindALeaf(t *testing.T) {
	t.Parallel()
	hub := serverOf(t, `server_name: hub, jetstream: {domain: hub}, leafnodes: {listen: "127.0.0.1:-1"}`)
	v, err := hub.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := serverOf(t, fmt.Sprintf(`server_name: leaf, default_js_domain: {"$G": hub}, leafnodes: {remotes: [{url: "nats-leaf://127.0.0.1:%d"}]}`, v.LeafNode.Port))
	nc := connectTo(t, leaf.ClientURL())
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for told := ""; !strings.Contains(told, `"name":"hub"`); { // once the leaf is there
		if err := nc.PublishRequest(userInfo, answers.Subject, nil); err != nil {
			t.Fatal(err)
		}
		m, err := answers.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		told = string(m.Data)
	}
	need := Config{Partitions: 2}.withDefaults().rights("_INBOX")
	for range 20 { // either may be the first
		if err := checkRights(t.Context(), nc, need); err != nil {
			t.Fatal(err)
		}
	}
	open(t, nc, Config{Partitions: 2})
}

// nats-server's answer about a user shows what is missing. A user with allow_responses and no list of subjects may only answer requests.
func TestRightsMissing(t *testing.T) {
	need := Rights{Publish: []string{"a"}, Answer: true}
	for said, want := range map[string]int{
		`null`:                     0,
		`{"responses":{"max":-1}}`: 1,
		`{"publish":{"allow":["a"]},"responses":{"max":1000}}`: 0,
		`{"publish":{"allow":["a"]},"responses":{"max":999}}`:  1,
		`{"publish":{"deny":["b"]}}`:                           0,
		`{"publish":{"deny":["a","b"]}}`:                       1,
		`{"publish":{"allow":["b","_INBOX.>"],"deny":["c"]}}`:  1,
	} {
		var p *permissions
		if err := json.Unmarshal([]byte(said), &p); err != nil {
			t.Fatal(err)
		}
		if missing := p.missing(need); len(missing) != want {
			t.Errorf("%s: %q", said, missing)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		entry, subject string
		covers, meets  bool
	}{
		{">", "a.b", true, true},
		{"a.>", "a", false, false},
		{"a.>", "a.>", true, true},
		{"a.*", "a.b", true, true},
		{"a.*", "a.*", true, true},
		{"a.*", "a.>", false, true},
		{"a.b", "a.*", false, true},
		{"a.b", "*.c", false, false},
		{"a.b.c", "a.>", false, true},
		{"a", "a.b", false, false},
		{"a.b", "a", false, false},
		{"a.> queue", "a.b", true, true},
		{"", "a", false, false},
	} {
		if got := match(c.entry, c.subject, false); got != c.covers {
			t.Errorf("%q covers %q: %t", c.entry, c.subject, got)
		}
		if got := match(c.entry, c.subject, true); got != c.meets {
			t.Errorf("%q meets %q: %t", c.entry, c.subject, got)
		}
	}
}
