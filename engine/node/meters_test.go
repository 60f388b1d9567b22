package node

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// Every trigger counts in the lateness, however many are due together. Events do not.
func TestLatenessOfStored(t *testing.T) {
	n := &Node{meters: newMeters(func() *Node { return nil })}
	stored := []engine.Output{{Due: 100}, {Due: 100, Kind: engine.OutputEvent}, {Due: 100, Kind: engine.OutputForced}, {Due: 99}, {Due: 98, Kind: engine.OutputEvent}}
	n.lateness(stored, 105e6)
	n.lateness(nil, 105e6)
	got := n.meters.latenessSummary()
	if got.Count != 3 || got.P50 < 4.9 || got.P50 > 5.1 || got.Max < 5.9 || got.Max > 6.1 {
		t.Errorf("%+v", got)
	}
	var text bytes.Buffer
	n.meters.write(&text)
	for _, want := range []string{`_bucket{le="0.004"} 0`, `_bucket{le="0.005"} 2`, `_bucket{le="0.0063"} 3`, `_bucket{le="+Inf"} 3`, "_count 3"} {
		if !strings.Contains(text.String(), "carillon_lateness_seconds"+want+"\n") {
			t.Errorf("there is no %s in\n%s", want, text.String())
		}
	}
}

// The lateness of the last minutes does not include that of an hour ago.
func TestLatenessOfLongAgo(t *testing.T) {
	n := &Node{meters: newMeters(func() *Node { return nil })}
	for _, ago := range []time.Duration{0, recentSpan + time.Second, time.Hour} {
		n.lateness([]engine.Output{{Due: 100}}, 105e6)
		n.meters.recent.turned = time.Now().Add(-ago)
		if got := n.meters.latenessSummary(); (got == nil) != (ago > 2*recentSpan) {
			t.Errorf("%s ago: %+v", ago, got)
		}
	}
}

// What an alert looks at counts from 0 on, or the alert on its rate would miss the first.
func TestAlertsCountFromZero(t *testing.T) {
	m := newMeters(func() *Node { return nil })
	l := m.listener(3, func() bool { return true })
	for want := range 2 {
		var text bytes.Buffer
		m.write(&text)
		for _, name := range []string{
			`carillon_skipped_total{reason="expired",partition="3"}`,
			`carillon_log_ignored_total{reason="malformed"}`,
			`carillon_requests_refused_total{code="limit_exceeded"}`,
		} {
			if line := fmt.Sprintf("%s %d\n", name, want); !strings.Contains(text.String(), line) {
				t.Errorf("there is no %s in\n%s", line, text.String())
			}
		}
		l.Skipped("expired", 1)
		l.Garbage("malformed")
		m.refused(carillon.CodeLimitExceeded).Inc()
	}
}

// The operator's page names every metric, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`carillon_[a-z_]+`)
	documented := make(map[string]bool)
	for _, name := range named.FindAllString(string(page), -1) {
		documented[strings.TrimSuffix(name, "_bucket")] = true
	}
	m := newWeb().meters
	m.listener(0, func() bool { return true }).Command("put", "")
	var text bytes.Buffer
	m.write(&text)
	exported := make(map[string]bool)
	for line := range strings.Lines(text.String()) {
		if name := named.FindString(line); name != "" && strings.HasPrefix(line, name) {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			exported[name] = true
		}
	}
	for name := range exported {
		if !documented[name] {
			t.Errorf("docs/operations.md lacks %s", name)
		}
	}
	for name := range documented {
		if !exported[name] {
			t.Errorf("docs/operations.md has %s, which there is not", name)
		}
	}
}

// A command counts by its verb and outcome, over all partitions.
func TestCommandCounters(t *testing.T) {
	m := newMeters(func() *Node { return nil })
	for p := range 2 {
		l := m.listener(p, func() bool { return true })
		for range 3 {
			l.Command("put", "")
		}
		l.Command("put", "not_found")
		l.Command("unknown", "")
	}
	var text bytes.Buffer
	m.write(&text)
	for _, want := range []string{
		`carillon_commands_total{verb="put",result="ok"} 6`,
		`carillon_commands_total{verb="put",result="not_found"} 2`,
		`carillon_commands_total{verb="unknown",result="ok"} 2`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
}

// The problems that /readyz reports are counted even while no node runs, because it waits for NATS or for disk space.
func TestProblemsAreCounted(t *testing.T) {
	w := newWeb()
	for _, problems := range [][]string{nil, {"waiting for NATS"}, {"one", "another"}} {
		w.problem(problems...)
		var text strings.Builder
		w.meters.write(&text)
		if want := fmt.Sprintf("\ncarillon_problems %d\n", max(1, len(problems))); !strings.Contains(text.String(), want) {
			t.Errorf("with %q the metrics lack %q", problems, want)
		}
	}
}
