package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	beatEvery = 100 * time.Millisecond
	deadAfter = 400 * time.Millisecond
)

func names(beats []Beat) (all []string) {
	for _, b := range beats {
		all = append(all, b.Name)
	}
	return all
}

func said(name, session string) Beat {
	return Beat{Node: Node{Name: name, Weight: 1}, Session: session}
}

func TestRosterByHand(t *testing.T) {
	r := newRoster("me", beatEvery, deadAfter)
	at, revision := time.Hour, uint64(10)
	own := func(after time.Duration) {
		at += after
		revision++
		r.beat(at, revision, said("a", "me"), false)
	}
	is := func(want ...string) {
		t.Helper()
		if got := names(r.live()); !slices.Equal(got, want) {
			t.Fatalf("live are %v, want %v", got, want)
		}
		var dead []string // or not heard yet: what they need of the log is kept
		for name := range r.members {
			if !slices.Contains(want, name) {
				dead = append(dead, name)
			}
		}
		slices.Sort(dead)
		if got := names(r.silent()); !slices.Equal(got, dead) {
			t.Fatalf("silent are %v, want %v", got, dead)
		}
	}
	r.beat(at, 3, said("b", "old"), true)
	r.beat(at, 4, said("c", "old"), true)
	own(0)
	is("a") // the keys of b and c have not changed yet
	if r.heard != 0 {
		t.Fatalf("%v were heard before the first own beat", r.heard)
	}
	if r.settled() {
		t.Fatal("settled before b and c had their time")
	}
	r.beat(at, 5, said("b", "old"), false)
	is("a", "b")
	for range 5 {
		own(beatEvery)
		r.beat(at, revision+100, said("b", "old"), false)
	}
	if is("a", "b"); !r.settled() {
		t.Fatal("not settled when c was silent for more than the bound")
	}
	r.beat(at, 200, said("c", "new"), false)
	is("a", "b", "c")

	// Nothing was heard for an hour, own beats included: nobody counts as dead for that.
	own(time.Hour)
	is("a", "b", "c")
	// The same revision again is no sign of life.
	for range 5 {
		own(beatEvery)
		r.beat(at, 200, said("c", "new"), false)
	}
	is("a")
	// A lower one is: the bucket is another one.
	r.beat(at, 1, said("c", "new"), false)
	is("a", "c")
	r.remove("c")
	is("a")

	// A member that died long ago is no longer listed as silent.
	for died := r.members["b"].at; r.heard-died <= remembered; {
		is("a")
		own(beatEvery)
	}
	if got := r.silent(); got != nil {
		t.Fatalf("silent are %v, after %v", names(got), remembered)
	}
}

// A beat of another session counts only once the one that has the name has been silent for the bound, or has left.
func TestRosterKeepsSessions(t *testing.T) {
	r := newRoster("me", beatEvery, deadAfter)
	at, revision := time.Duration(0), uint64(0)
	beats := func(name, session string) {
		revision++
		r.beat(at, revision, said(name, session), false)
	}
	own := func() {
		at += beatEvery
		beats("a", "me")
	}
	session := func() string {
		b, _ := View{Members: r.live()}.Member("b")
		return b.Session
	}
	own()
	beats("b", "one")
	for silent := time.Duration(0); silent <= deadAfter; silent += beatEvery {
		if beats("b", "two"); session() != "one" || r.revision("b") != revision {
			t.Fatalf("after a silence of %s, b is session %q at revision %d", silent, session(), r.revision("b"))
		}
		own()
	}
	if beats("b", "two"); session() != "two" {
		t.Errorf("after the bound b is session %q", session())
	}
	r.remove("b")
	if beats("b", "three"); session() != "three" {
		t.Errorf("after its key was removed, b is session %q", session())
	}
}

// Whatever is heard when: a member that is heard at least once within the bound less two intervals, by the clock of the roster's own
// beats, is live, however long nothing at all was heard in between. A member that is silent for the bound and an
// interval, while own beats came on time, is not.
func TestRosterJudgesByWhatItHears(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoster("me", beatEvery, deadAfter)
		now, revision := time.Duration(0), uint64(0)
		var silent int // own beats on time since the member's last
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "blind") == 0 {
				now += time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "for"))
				silent++ // a gap counts for at most two intervals
			} else {
				now += beatEvery
			}
			revision++
			r.beat(now, revision, said("me", "me"), false)
			silent++
			if rapid.Bool().Draw(t, "heard") {
				revision++
				r.beat(now, revision, said("other", "x"), false)
				silent = 0
			}
			_, live := View{Members: r.live()}.Member("other")
			if s, known := r.members["other"]; known && silent*int(beatEvery) <= int(deadAfter) && !live {
				t.Fatalf("dead after %d beats, %v of %v heard", silent, r.heard-s.at, r.heard)
			}
		}
		for range 5 {
			now += beatEvery
			revision++
			r.beat(now, revision, said("me", "me"), false)
		}
		if got := names(r.live()); !slices.Equal(got, []string{"me"}) {
			t.Fatalf("live are %v after the other's silence", got)
		}
	})
}

// Clocks of two machines are never compared: no time of the stream is read, and the local clock only once, where the
// monotonic one begins.
func TestNoWallClock(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set, nows := token.NewFileSet(), 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Now":
					nows++
				case "Created", "Unix", "UnixNano", "UnixMilli", "Round", "UTC":
					t.Errorf("%s uses %s", set.Position(s.Pos()), s.Sel.Name)
				}
			}
			return true
		})
	}
	if nows != 1 {
		t.Errorf("the clock is read in %d places, want one", nows)
	}
}
