package node

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/loglimit"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// However often something goes wrong, the log has one line about it in each period, which counts those that were held back.
func TestLimitedLog(t *testing.T) {
	var lines bytes.Buffer
	n := &Node{log: slog.New(slog.NewTextHandler(&lines, nil))}
	for range 1000 {
		n.logMembershipError(errors.New("first"))
	}
	if got := strings.Count(lines.String(), "\n"); got != 1 || !strings.Contains(lines.String(), `msg="error of this node's membership; trying again" error=first held_back=0`) {
		t.Errorf("%d lines are logged: %s", got, lines.String())
	}
	lines.Reset()
	for range 1000 { // as if NATS were down for four minutes
		n.readerResets(errors.New("away"))
	}
	if got := strings.Count(lines.String(), "\n"); got != 1 || !strings.Contains(lines.String(), `msg="reading the log starts over" error=away held_back=0`) {
		t.Errorf("%d lines are logged: %s", got, lines.String())
	}
	lines.Reset()
	for range 1000 {
		n.logConnError(nats.ErrAuthorization)
		n.logConnError(nats.ErrPermissionViolation) // of other subjects, or of as many outputs
	}
	if got := lines.String(); strings.Count(got, nats.ErrAuthorization.Error()) != 1 || strings.Count(got, nats.ErrPermissionViolation.Error()) != connErrorLines {
		t.Errorf("logged: %s", got)
	}
	lines.Reset()
	synctest.Test(t, func(*testing.T) {
		var shy limitedLog
		start := time.Now()
		for i, after := range []time.Duration{0, loglimit.Every - 1, loglimit.Every - 1, loglimit.Every, 2 * loglimit.Every} {
			time.Sleep(time.Until(start.Add(after)))
			shy.warn(n.log, "trouble", "number", i)
		}
	})
	if got := lines.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "msg=trouble number=3 held_back=2") || !strings.Contains(got, "number=4 held_back=0") {
		t.Errorf("logged: %s", got)
	}
}

// lineWriter hands on what is logged, line by line.
type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

// The log says when the connection is lost and when it is made again, with the server's name. A connection that the node leaves, or closes,
// is not lost.
func TestLogConnection(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	logged, closed := make(lineWriter, 10), make(chan struct{})
	n := &Node{log: slog.New(slog.NewTextHandler(logged, nil))}
	nc, err := nats.Connect(ns.ClientURL(), n.logConnection(""), nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	is := func(level, what, more string) {
		t.Helper()
		line := natstest.Receive(t, what, logged)
		for _, part := range []string{"level=" + level, what, "connection=main server=" + ns.ClientURL(), more} {
			if !strings.Contains(line, part) {
				t.Errorf("logged without %s: %s", part, line)
			}
		}
	}
	is("INFO", "connected to NATS again", "held_back=0")
	ns.Shutdown()
	is("WARN", "the connection to NATS is lost", "error=")
	nc.Close()
	natstest.Receive(t, "that it is closed", closed)
	if len(logged) > 0 {
		t.Errorf("also logged: %s", <-logged)
	}
}
