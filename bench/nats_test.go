package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// startNATS runs a nats-server with JetStream for one test.
func startNATS(t *testing.T) (url string, js jetstream.JetStream) {
	t.Helper()
	url = natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return url, js
}

// A run that starts an engine on a NATS that runs already leaves the NATS as it was. It refuses one with the streams of a
// service, and leaves these alone.
func TestExternalNATS(t *testing.T) {
	t.Parallel() // it waits for most of its time
	url, js := startNATS(t)
	streams := func() (names []string) {
		t.Helper()
		list := js.StreamNames(t.Context())
		for name := range list.Name() {
			names = append(names, name)
		}
		if err := list.Err(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		return names
	}
	for _, name := range []string{"OTHERS", "CARILLONS_LOG"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	s := service(t)
	s.NATS = url
	c := LatenessConfig{Service: s, Rate: 200, Duration: time.Second}
	r, err := RunLateness(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Checks.clean() || r.Checks.Expected != 200 {
		t.Errorf("checks are %+v", *r.Checks)
	}
	if !strings.Contains(r.Machine.Sync, "as the NATS has it") {
		t.Errorf("what is synced is said to be %q", r.Machine.Sync)
	}
	if left := streams(); !slices.Equal(left, []string{"CARILLONS_LOG", "OTHERS"}) {
		t.Errorf("the run left %v", left)
	}

	log := carillon.DefaultNames().LogStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: log, Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := RunLateness(t.Context(), c); err == nil || !strings.Contains(err.Error(), log) {
		t.Errorf("beside the streams of a service: %v", err)
	}
	if left := streams(); !slices.Contains(left, log) {
		t.Error("the run removed a service's stream")
	}
}

// An engine's user has fewer rights than a run needs. The error says which right is missing, and what to do.
func TestExternalNATSWithoutRights(t *testing.T) {
	const names = "$JS.API.STREAM.NAMES"
	url := natstest.Start(t, &server.Options{JetStream: true, Users: []*server.User{{
		Username: "engine", Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{names}}},
	}}}).ClientURL()
	ctx, refused := context.WithCancel(t.Context())
	e := &engine{Service: Service{NATS: url, Names: carillon.DefaultNames(), Connect: func(url string) (*nats.Conn, error) {
		return nats.Connect(url, nats.UserInfo("engine", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused() }))
	}}}
	err := e.reserve(ctx)
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), names) || !strings.Contains(err.Error(), "all rights") {
		t.Errorf("without a right: %v", err)
	}
}

// A ceiling's streams have as many replicas as those of the service beside which it is measured.
func TestReplicatedCeiling(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3, "")
	nc, err := nats.Connect(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := CeilingConfig{Service: Service{Server: c.URL(), Data: t.TempDir()}}
	if config, err = config.withDefaults(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 3} { // servers without a service, and with one
		if want > 1 {
			out := jetstream.StreamConfig{Name: config.Service.Names.OutStream(0), Subjects: []string{"x"}, Replicas: want}
			if _, err := js.CreateStream(t.Context(), out); err != nil {
				t.Fatal(err)
			}
		}
		m, err := openCeiling(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		name, err := m.stream(t.Context(), jetstream.DefaultPersistMode)
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().Config.Replicas; got != want || m.replicas != want {
			t.Errorf("the ceiling's stream has %d replicas and says %d, expected %d", got, m.replicas, want)
		}
		if err := m.remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if s := (Machine{Replicas: 3}).String(); !strings.HasSuffix(s, "; 3 replicas") {
		t.Errorf("the machine is said to be %q", s)
	}
}

func TestSyncMode(t *testing.T) {
	own := Service{Command: []string{"carillon", "serve"}}
	seen := make(map[string]bool)
	for _, s := range []Service{own, own.unbounded(0, true), {Server: "nats://x"}, {NATS: "nats://x"}} {
		seen[s.sync()] = true
	}
	if len(seen) != 4 || own.unbounded(0, false).sync() != own.sync() {
		t.Errorf("sync modes are %v", seen)
	}
}
