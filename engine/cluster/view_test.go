package cluster

import (
	"slices"
	"testing"
)

func follows(name string, position, epoch uint64) Beat {
	return Beat{Node: Node{Name: name}, Session: "s", Report: Report{Partitions: []Progress{{Partition: 0, Position: position, Epoch: epoch}}}}
}

func idle(name string) Beat { return Beat{Node: Node{Name: name}, Session: "s"} }

// The member to ask about a partition is the one that serves it, or else the one that is furthest.
func TestFollower(t *testing.T) {
	for _, c := range []struct {
		members []Beat
		want    string
	}{
		{nil, ""},
		{[]Beat{idle("a")}, ""},
		{[]Beat{idle("a"), follows("b", 0, 0)}, "b"},
		{[]Beat{follows("a", 9, 0), follows("b", 10, 0)}, "b"},
		{[]Beat{follows("a", 9, 3), follows("b", 10, 0)}, "a"},
	} {
		if got := (View{Members: c.members}).Follower(0); got != c.want {
			t.Errorf("%+v: %q, want %q", c.members, got, c.want)
		}
	}
}

func TestClaimant(t *testing.T) {
	drains := func(b Beat) Beat {
		b.Draining = true
		return b
	}
	placement := Placement{{Owner: "a", Standbys: []string{"b", "c"}}}
	for _, c := range []struct {
		what    string
		members []Beat
		want    string
	}{
		{"nobody is live", nil, ""},
		{"a new cluster", []Beat{idle("a"), idle("b")}, "a"},
		{"the owner serves", []Beat{follows("a", 100, 7), follows("b", 101, 0)}, "a"},
		{"the owner catches up, another serves", []Beat{follows("a", 10, 0), follows("d", 100, 7)}, "d"},
		{"the owner has not begun, another serves", []Beat{idle("a"), follows("d", 100, 7)}, "d"},
		{"the owner catches up, another serves, a standby has caught up", []Beat{follows("a", 10, 0), follows("b", 99, 0), follows("d", 100, 7)}, "d"},
		{"the owner has not begun, another drains", []Beat{idle("a"), follows("b", 9, 0), follows("c", 99, 0), drains(follows("d", 100, 7))}, "c"},
		{"the owner has not begun, another drains, nobody else follows", []Beat{idle("a"), drains(follows("d", 100, 7)), follows("e", 101, 0)}, "d"},
		{"the owner has caught up, another drains", []Beat{follows("a", 95, 0), follows("b", 99, 0), drains(follows("d", 100, 7))}, "a"},
		{"the owner has caught up", []Beat{follows("a", 95, 0), follows("d", 100, 7)}, "a"},
		{"the owner is gone", []Beat{follows("b", 99, 0), follows("c", 100, 0)}, "b"},
		{"the owner is gone, the first standby is behind", []Beat{follows("b", 9, 0), follows("c", 100, 0)}, "c"},
		{"nobody who should follow does", []Beat{idle("b"), follows("d", 9, 0), follows("e", 100, 0)}, "e"},
		{"two think that they serve: the later claim", []Beat{idle("a"), follows("d", 100, 7), follows("e", 99, 8)}, "e"},
		{"the owner is gone, nobody follows", []Beat{idle("b")}, ""},
	} {
		if got := (View{Members: c.members, Placement: placement}).Claimant(0, 5); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	if got := (View{Members: []Beat{idle("a")}}).Claimant(0, 5); got != "" {
		t.Errorf("without a placement: %q", got)
	}
	v := View{Placement: placement}
	if got, beyond := v.Standbys(0), v.Standbys(1); !slices.Equal(got, []string{"b", "c"}) || beyond != nil {
		t.Errorf("the standbys are %q, and of a partition without an assignment %q", got, beyond)
	}
}

// What a member is makes a new view; figures, which change all the time, do not.
func TestSameBeats(t *testing.T) {
	for what, change := range map[string]func(*Beat){
		"name":     func(b *Beat) { b.Name = "b" },
		"weight":   func(b *Beat) { b.Weight++ },
		"zone":     func(b *Beat) { b.Zone = "attic" },
		"session":  func(b *Beat) { b.Session = "other" },
		"version":  func(b *Beat) { b.Version = "2" },
		"standbys": func(b *Beat) { b.Standbys++ },
		"draining": func(b *Beat) { b.Draining = true },
	} {
		b := follows("a", 1, 7) // without a weight, as a draining one counts
		changed := b
		if change(&changed); b.sameAs(&changed) {
			t.Errorf("%s changes, and no view", what)
		}
	}
	b, later := follows("a", 1, 7), follows("a", 2, 7)
	later.ClockOffsetMS, later.Needs = 3, 4
	if !b.sameAs(&later) {
		t.Error("figures make a new view")
	}
}
