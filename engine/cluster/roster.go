package cluster

import (
	"slices"
	"strings"
	"time"
)

// roster decides who is live. No wall clock comes near it, its own or another's: it is fed with revisions, and
// with the time of the local monotonic clock at which its own beats came back through the bucket.
//
// A member is silent for as long as the roster heard its own beats and none of the member's. So a node that was
// stopped, cut off or without a server finds nobody dead for it when it comes back: while it heard nothing, not
// even itself, it learnt nothing about others. Each gap between own beats counts for at most maxGap.
type roster struct {
	self   string // session
	bound  time.Duration
	maxGap time.Duration

	heard   time.Duration // how long own beats were heard, in all
	echo    time.Duration // when the last one was, by the monotonic clock
	echoed  bool
	members map[string]*seen
	left    map[string]bool // whose keys were removed
}

type seen struct {
	Beat
	revision uint64
	changed  bool          // since it is watched; what was there before may be of long ago
	at       time.Duration // of heard
}

func newRoster(session string, interval, bound time.Duration) *roster {
	return &roster{self: session, bound: bound, maxGap: 2 * interval, members: make(map[string]*seen), left: make(map[string]bool)}
}

// beat takes a member's beat. first says that it was in the bucket before the watch began: only a change shows life.
// A revision that differs is a change, even a lower one: a bucket that was made anew counts from one again.
func (r *roster) beat(now time.Duration, revision uint64, b Beat, first bool) {
	if b.Session == r.self {
		if r.echoed {
			r.heard += min(max(now-r.echo, 0), r.maxGap)
		}
		r.echo, r.echoed = now, true
		first = false
	}
	delete(r.left, b.Name)
	s, known := r.members[b.Name]
	if !known {
		r.members[b.Name] = &seen{Beat: b, revision: revision, changed: !first, at: r.heard}
		return
	}
	if s.revision != revision {
		*s = seen{Beat: b, revision: revision, changed: true, at: r.heard}
	}
}

// revision is that of a member's newest beat; 0: there is none.
func (r *roster) revision(name string) uint64 {
	if s := r.members[name]; s != nil {
		return s.revision
	}
	return 0
}

func (r *roster) remove(name string) {
	delete(r.members, name)
	r.left[name] = true
}

// unheard tells whether there is neither a key of one of these, nor the mark of its removal: then it was in a bucket that is lost.
func (r *roster) unheard(nodes []Node) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return r.members[n.Name] == nil && !r.left[n.Name] })
}

// live lists the live members by name.
func (r *roster) live() []Beat {
	return r.list(func(s *seen) bool { return s.changed && r.heard-s.at <= r.bound })
}

// remembered is for how long a dead member is one of whom something may be expected.
const remembered = 10 * time.Minute

// silent lists those who died not long ago.
func (r *roster) silent() []Beat {
	return r.list(func(s *seen) bool { return (!s.changed || r.heard-s.at > r.bound) && r.heard-s.at <= remembered })
}

// abandonedAfter is the silence after which a member's key is of no use: nothing has been expected of it for long.
const abandonedAfter = time.Hour

// abandoned finds a member that was silent for so long, and its revision.
func (r *roster) abandoned() (name string, revision uint64, found bool) {
	for _, s := range r.members {
		if r.heard-s.at > abandonedAfter {
			return s.Name, s.revision, true
		}
	}
	return "", 0, false
}

func (r *roster) list(which func(*seen) bool) []Beat {
	var list []Beat
	for _, s := range r.members {
		if which(s) {
			list = append(list, s.Beat)
		}
	}
	slices.SortFunc(list, func(a, b Beat) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// settled tells whether the roster has heard enough to judge everybody: each member has changed, or had the time to.
func (r *roster) settled() bool {
	if !r.echoed {
		return false
	}
	for _, s := range r.members {
		if !s.changed && r.heard-s.at <= r.bound {
			return false
		}
	}
	return true
}
