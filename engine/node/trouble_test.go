package node

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// However often something goes wrong, the log has one line of it in a while, which counts the rest.
func TestTrouble(t *testing.T) {
	var lines bytes.Buffer
	n := &Node{o: Options{Stream: "S"}, log: slog.New(slog.NewTextHandler(&lines, nil))}
	tell := n.membership().OnTrouble
	for range 1000 {
		tell(errors.New("first"))
	}
	if got := strings.Count(lines.String(), "\n"); got != 1 || !strings.Contains(lines.String(), "msg=membership error=first held_back=0") {
		t.Errorf("%d lines are logged: %s", got, lines.String())
	}
	var shy trouble
	start := time.Now()
	lines.Reset()
	shy.tell(n.log, start, errors.New("one"))
	shy.tell(n.log, start.Add(troublePause-1), errors.New("two"))
	shy.tell(n.log, start.Add(troublePause-1), errors.New("three"))
	shy.tell(n.log, start.Add(troublePause), errors.New("four"))
	shy.tell(n.log, start.Add(2*troublePause), errors.New("five"))
	if got := lines.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "error=four held_back=2") || !strings.Contains(got, "error=five held_back=0") {
		t.Errorf("logged: %s", got)
	}
}
