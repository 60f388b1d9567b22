package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/carillon-scheduler/carillon"
)

// connection is how to reach a service. The names of flags and variables are those of the nats CLI
// (nats-io/natscli, main.go), and so is the precedence: a flag, then the environment.
type connection struct {
	server, user, password, creds, nkey string
	cert, key, ca                       string
	tlsFirst                            bool
	timeout                             time.Duration
	prefix, inboxPrefix                 string
}

var connectionFlags = []string{
	"server", "user", "password", "creds", "nkey", "tlscert", "tlskey", "tlsca", "tlsfirst", "inbox-prefix", "timeout", "prefix",
}

func (c *connection) flags(f *pflag.FlagSet) {
	f.VarP((*nonEmpty)(&c.server), "server", "s", "NATS `URL`s, separated by commas ($NATS_URL; default "+nats.DefaultURL+")")
	f.StringVar(&c.user, "user", "", "user `name`, or a token when there is no password ($NATS_USER)")
	f.StringVar(&c.password, "password", "", "`password` ($NATS_PASSWORD)")
	f.StringVar(&c.creds, "creds", "", "user credentials `file` ($NATS_CREDS)")
	f.StringVar(&c.nkey, "nkey", "", "user NKEY seed `file` ($NATS_NKEY)")
	f.StringVar(&c.cert, "tlscert", "", "TLS client certificate `file` ($NATS_CERT)")
	f.StringVar(&c.key, "tlskey", "", "TLS private key `file` ($NATS_KEY)")
	f.StringVar(&c.ca, "tlsca", "", "TLS certificate authority `file` ($NATS_CA)")
	f.BoolVar(&c.tlsFirst, "tlsfirst", false, "begin with TLS, where the server is configured with handshake_first")
	f.Var((*nonEmpty)(&c.inboxPrefix), "inbox-prefix", "`subject` under which answers come, where the user may hear no other (default _INBOX)")
	f.DurationVar(&c.timeout, "timeout", 0, "how long to wait for an answer ($NATS_TIMEOUT; default 10s)")
	f.Var((*nonEmpty)(&c.prefix), "prefix", "the service's subject `prefix` ($CARILLON_PREFIX; default carillon)")
}

// variable is a variable of the environment, which is the default of a flag.
type variable struct {
	value *string
	name  string
}

// credentials returns the variables of the flags by which the server knows the user, and the user the server.
func (c *connection) credentials() []variable {
	return []variable{
		{&c.user, "NATS_USER"},
		{&c.password, "NATS_PASSWORD"},
		{&c.creds, "NATS_CREDS"},
		{&c.nkey, "NATS_NKEY"},
		{&c.cert, "NATS_CERT"},
		{&c.key, "NATS_KEY"},
		{&c.ca, "NATS_CA"},
	}
}

// resolve takes from the environment what no flag gave.
func (c *connection) resolve() error {
	prefixGiven := c.prefix != ""
	for _, v := range append(c.credentials(), variable{&c.server, "NATS_URL"}, variable{&c.prefix, "CARILLON_PREFIX"}) {
		*v.value = cmp.Or(*v.value, os.Getenv(v.name))
	}
	c.server = cmp.Or(c.server, nats.DefaultURL)
	c.prefix = cmp.Or(c.prefix, carillon.DefaultNames().Prefix)
	if env := os.Getenv("NATS_TIMEOUT"); c.timeout == 0 && env != "" {
		d, err := time.ParseDuration(env)
		if err != nil || d < 0 {
			return usagef("NATS_TIMEOUT is %q, must be %s", env, aDuration)
		}
		c.timeout = d
	}
	c.timeout = cmp.Or(c.timeout, carillon.DefaultTimeout)
	if c.timeout < 0 {
		return usagef("--timeout is %s, must not be negative", c.timeout)
	}
	if (c.cert == "") != (c.key == "") {
		return usagef("--tlscert and --tlskey go together (NATS_CERT and NATS_KEY)")
	}
	err := c.names().Validate()
	if err != nil && !prefixGiven {
		return usagef("CARILLON_PREFIX: %w", err)
	}
	return optionError(err)
}

func (c *connection) names() carillon.Names { return carillon.NamesFor(c.prefix) }

// checkServers refuses a list of URLs that names no server, or has something else in it. nats.go would take it for a server that is not
// there, for which an engine waits. Its error tells no password.
func checkServers(flag, list string) error {
	named := false
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		whole := s
		if !strings.Contains(whole, "://") {
			whole = "nats://" + whole
		}
		u, err := url.Parse(whole)
		if err == nil && u.Port() != "" {
			_, err = strconv.ParseUint(u.Port(), 10, 16)
		}
		if err != nil || u.Host == "" {
			return usagef("%s has %q, must be URLs such as nats://127.0.0.1:4222, separated by commas", flag, redacted(s))
		}
		named = true
	}
	if !named {
		return usagef("%s is %q, which names no server", flag, list)
	}
	return nil
}

// clientOptions returns the options of a client's connection: its name, how long it waits, and options.
func (c *connection) clientOptions() ([]nats.Option, error) {
	o, err := c.options()
	return append(o, nats.Name("carillon command line"), nats.Timeout(c.timeout)), err
}

// options returns the options of nats.go that the flags ask for, for clients and engines: users, credentials and TLS.
func (c *connection) options() ([]nats.Option, error) {
	for _, f := range []struct{ flag, variable, name string }{
		{"creds", "NATS_CREDS", c.creds},
		{"nkey", "NATS_NKEY", c.nkey},
		{"tlscert", "NATS_CERT", c.cert},
		{"tlskey", "NATS_KEY", c.key},
		{"tlsca", "NATS_CA", c.ca},
	} {
		if f.name == "" {
			continue
		}
		if _, err := os.ReadFile(f.name); err != nil { // nats.go would say so in an error about the server
			return nil, fmt.Errorf("--%s (%s): %w", f.flag, f.variable, err)
		}
	}
	var o []nats.Option
	switch {
	case c.user != "" && c.password == "":
		o = append(o, nats.Token(c.user))
	case c.user != "":
		o = append(o, nats.UserInfo(c.user, c.password))
	}
	if c.creds != "" {
		o = append(o, nats.UserCredentials(c.creds))
	}
	if c.nkey != "" {
		seed, err := nats.NkeyOptionFromSeed(c.nkey)
		if err != nil {
			return nil, fmt.Errorf("--nkey: %w", err)
		}
		o = append(o, seed)
	}
	if c.cert != "" {
		o = append(o, nats.ClientCert(c.cert, c.key))
	}
	if c.ca != "" {
		o = append(o, nats.RootCAs(c.ca))
	}
	if c.tlsFirst {
		o = append(o, nats.TLSHandshakeFirst())
	}
	if p := c.inboxPrefix; p != "" {
		if strings.ContainsAny(p, "*> \t\r\n") || slices.Contains(strings.Split(p, "."), "") {
			return nil, usagef("--inbox-prefix is %q, must be a subject without wildcards, such as _INBOX_ann", p)
		}
		o = append(o, nats.CustomInboxPrefix(p))
	}
	return o, nil
}

// reconnectForever is for commands that go on until they are interrupted, even while NATS is down or credentials have yet to be renewed.
var reconnectForever = []nats.Option{nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()}

// tellConnection has such a command tell when its connection is lost, and when it is there again; else an outage would look as if nothing
// was due. mu is held while it writes.
func (a *app) tellConnection(ctx context.Context, mu *sync.Mutex) []nats.Option {
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			fmt.Fprintf(a.stderr, "carillon: "+format+"\n", args...)
		}
	}
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // else the command itself has closed it
				tell("the connection to NATS is lost (%s); connecting again", oneLine(err))
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { tell("connected to NATS again") }),
	}
}

// connect opens a connection, which the caller must close, and a client on it. It gives up when ctx ends.
func (a *app) connect(ctx context.Context, more ...nats.Option) (*nats.Conn, *carillon.Client, error) {
	c := &a.connection
	if err := c.resolve(); err != nil {
		return nil, nil, err
	}
	if err := checkServers("the server (--server, NATS_URL)", c.server); err != nil {
		return nil, nil, err
	}
	options, err := c.clientOptions()
	if err != nil {
		return nil, nil, err
	}
	nc, err := dial(ctx, c.server, append(options, more...))
	if err = redactError(err); err != nil {
		return nil, nil, &carillon.Error{
			Code: carillon.CodeUnavailable, Message: fmt.Sprintf("cannot connect to %s: %v", redacted(c.server), err),
		}
	}
	return nc, carillon.Connect(nc, carillon.WithNames(c.names()), carillon.WithTimeout(c.timeout)), nil
}

// dial is nats.Connect with a context.
func dial(ctx context.Context, servers string, options []nats.Option) (*nats.Conn, error) {
	type dialed struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan dialed)
	go func() {
		nc, err := nats.Connect(servers, options...)
		select {
		case done <- dialed{nc, err}:
		case <-ctx.Done():
			nc.Close()
		}
	}()
	select {
	case d := <-done:
		return d.nc, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// redactError returns an error of nats.Connect without the URL, which may have secrets in it.
func redactError(err error) error {
	if _, ok := errors.AsType[*url.Error](err); ok {
		return errors.New("it is not a URL")
	}
	return err
}

// redacted returns a list of URLs without their passwords and tokens. It does not use url.Parse, which refuses some URLs that
// nats.go accepts, and any with a mistake in its password.
func redacted(servers string) string {
	list := strings.Split(servers, ",")
	for i, s := range list {
		scheme, rest, ok := strings.Cut(s, "://")
		if !ok {
			scheme, rest = "", s
		}
		at := strings.LastIndexByte(rest, '@')
		if at < 0 {
			continue
		}
		user, _, password := strings.Cut(rest[:at], ":")
		if !password { // the user is a token
			user = "xxxxx"
		} else {
			user += ":xxxxx"
		}
		list[i] = user + rest[at:]
		if ok {
			list[i] = scheme + "://" + list[i]
		}
	}
	return strings.Join(list, ",")
}
