package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// An engine goes to a nats-server of its own machine first, whatever the order in which they were given; where there is
// none, or the order is to be kept, the library chooses as ever.
func TestNearestFirst(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	own := []string{"nats://127.0.0.1:4222", "nats://user:word@localhost", "127.0.0.1", "tls://[::1]:4222"}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok {
			own = append(own, "nats://"+net.JoinHostPort(ip.IP.String(), "4222"))
		}
	}
	away := []string{"nats://203.0.113.1:4222", "nats://203.0.113.2", "nats://203.0.113.3:bad"}
	for _, near := range own {
		for at := range len(away) + 1 {
			servers := slices.Insert(slices.Clone(away), at, near)
			o := nats.Options{Servers: slices.Clone(servers)}
			if err := nearestFirst(&o); err != nil {
				t.Fatal(err)
			}
			if o.Url != near || !slices.Equal(o.Servers, away) {
				t.Errorf("of %q the first is %q, and %q are left", servers, o.Url, o.Servers)
			}
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if onThisMachine(over, "nats://no.such.host.invalid") {
		t.Error("a name that was not found in time is this machine's")
	}
	for name, o := range map[string]nats.Options{
		"none is near":   {Servers: away},
		"kept in order":  {Servers: append(slices.Clone(away), own[0]), NoRandomize: true},
		"one and only":   {Servers: own[:1]},
		"another is set": {Servers: append(slices.Clone(away), own[0]), Url: away[1]},
	} {
		before := o
		if err := nearestFirst(&o); err != nil || o.Url != before.Url || !slices.Equal(o.Servers, before.Servers) {
			t.Errorf("%s: the first is %q, and %q are left (%v)", name, o.Url, o.Servers, err)
		}
	}
	chosen := make(map[string]bool)
	for range 1000 { // of several all are taken, each by some engines
		o := nats.Options{Servers: slices.Clone(own[:3])}
		if err := nearestFirst(&o); err != nil {
			t.Fatal(err)
		}
		chosen[o.Url] = true
	}
	if len(chosen) != 3 {
		t.Errorf("of three on this machine only %v are ever first", chosen)
	}
}

// A start that finds no leader begins anew, and one that is refused for good does not.
func TestUnreachable(t *testing.T) {
	_, unknown := dialer{}.Dial("tcp", "a..b:4222") // no name at all, so that nobody is asked for it
	for _, err := range []error{
		unknown,
		turnedAway(errors.New("nats: maximum connections exceeded")), turnedAway(errors.New("nats: maximum account active connections exceeded")),
		nats.ErrNoServers, jetstream.ErrNoStreamResponse, &jetstream.APIError{Code: 503, ErrorCode: 10008}, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
	} {
		if !errors.Is(unreachable(fmt.Errorf("cluster: join: %w", err)), errUnreachable) {
			t.Errorf("%v is for good", err)
		}
	}
	for _, err := range []error{
		jetstream.ErrStreamNotFound, &jetstream.APIError{Code: 400, ErrorCode: 10052}, syscall.ENOSPC,
		&net.OpError{Op: "remote error", Err: tls.AlertError(116)}, // a certificate is wanted
	} {
		if errors.Is(unreachable(err), errUnreachable) {
			t.Errorf("%v is not for good", err)
		}
	}
}

// A proxy with nobody behind it, or a server that stops, closes a connection before it says anything.
func TestTurnedAway(t *testing.T) {
	closes, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closes.Close()
	go func() {
		for {
			c, err := closes.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = Options{NATS: closes.Addr().String()}.connect("")
	if !errors.Is(unreachable(err), errUnreachable) || !strings.Contains(err.Error(), "--tlsfirst") {
		t.Errorf("it ends with %v", err)
	}
}

// What is wrong with a URL is said without its password.
func TestConnectKeepsSecrets(t *testing.T) {
	for _, url := range []string{"nats://engine:s3c%zzret@127.0.0.1:1", "nats://engine:s3c#ret@127.0.0.1:1", "nats://engine:s3c ret@127.0.0.1:1"} {
		if _, err := (Options{NATS: url}).connect(""); err == nil || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// What a connection meets is told by the engine's log, and of those that only ask for a sign of life not at all: the library would
// write to standard error.
func TestConnectionsTellTheLog(t *testing.T) {
	url := natstest.Start(t, &server.Options{}).ClientURL()
	var lines bytes.Buffer
	o := Options{Name: "a", NATS: url, Logger: slog.New(slog.NewTextHandler(&lines, nil))}
	nc, err := o.connect("")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := servers{o: o, all: make(map[string]*natsServer)}
	ctx, cancel := context.WithCancel(t.Context())
	s.add(ctx, url)
	defer s.work.Wait()
	defer cancel()
	for _, nc := range []*nats.Conn{nc, s.all[url].nc} {
		nc.Opts.AsyncErrorCB(nc, nil, nats.ErrAuthorization)
	}
	if got := lines.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="error of the NATS connection" error=`) {
		t.Errorf("logged: %s", got)
	}
}
