package carillon

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What waits is begun in its order, goes back by its pull, and is known to the heartbeat until it is answered.
func TestDeliveries(t *testing.T) {
	s := newDeliveries(2)
	held := func() (names []string) {
		if err := s.each(func(m *nats.Msg) error { names = append(names, m.Subject); return nil }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	check := func(want ...string) {
		t.Helper()
		if got := held(); !slices.Equal(got, want) {
			t.Fatalf("held %v; want %v", got, want)
		}
	}
	begin := func(h int, want string) {
		t.Helper()
		if d, ok := s.begin(h); !ok || d.msg.Subject != want {
			t.Fatalf("began %+v, %v; want %s", d.msg, ok, want)
		}
	}
	a, b := &pull{begun: make(chan struct{}, 1)}, &pull{begun: make(chan struct{}, 1)}
	add := func(of *pull, names ...string) {
		var all []delivery
		for _, name := range names {
			all = append(all, delivery{msg: &nats.Msg{Subject: name}, pull: of})
		}
		s.add(all)
	}
	add(a, "a1", "a2")
	add(b, "b1")
	add(a, "a3")
	add(b, "b2")
	begin(0, "a1")
	begin(1, "a2")
	check("b1", "a3", "b2", "a1", "a2")
	if out := s.withdraw(a); len(out) != 1 || out[0].msg.Subject != "a3" || s.waits(a) || !s.waits(b) {
		t.Fatalf("withdrew %v", out)
	}
	<-a.begun // the token
	s.let(1)
	check("b1", "b2", "a1")
	begin(0, "b1")
	for i := range 10 { // the gone give their places away
		add(b, strconv.Itoa(i))
	}
	begin(1, "b2")
	s.close()
	for i := range 10 {
		begin(0, strconv.Itoa(i))
	}
	<-b.begun
	check("9", "b2")
	for h := range 2 {
		if d, ok := s.begin(h); ok {
			t.Fatalf("began %s after the end", d.msg.Subject)
		}
	}
	check()
}

func TestPullOutcome(t *testing.T) {
	for _, c := range []struct {
		status, description string
		ended               bool
		err                 error
	}{
		{"100", "Idle Heartbeat", false, nil},
		{"404", "No Messages", true, nil},
		{"408", "Request Timeout", true, nil},
		{"503", "", true, nats.ErrNoResponders},
		{"409", "Consumer Deleted", true, jetstream.ErrConsumerDeleted},
	} {
		ended, err := outcome(nats.Header{"Status": {c.status}, "Description": {c.description}})
		if ended != c.ended || !errors.Is(err, c.err) {
			t.Errorf("%s %s: %v, %v", c.status, c.description, ended, err)
		}
	}
	if ended, err := outcome(nats.Header{"Status": {"409"}, "Description": {"Leadership Change"}}); !ended || err == nil || err.Error() != "409 Leadership Change" {
		t.Errorf("%v, %v", ended, err)
	}
}
