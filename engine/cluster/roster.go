package cluster

import (
	"slices"
	"strings"
	"time"
)

// roster decides who is live. It uses no wall clock, neither this machine's nor another's. Its input is revisions, and
// the time at which its own beats came back through the bucket, by the local monotonic clock.
//
// A member is silent for as long as the roster heard its own beats and none of the member's. So a node that was
// stopped, cut off or without a server does not find others dead when it comes back: while it heard nothing, not
// even itself, it learnt nothing about others. Each gap between own beats counts for at most maxGap.
type roster struct {
	self   string // this member's session
	bound  time.Duration
	maxGap time.Duration

	heard   time.Duration // the roster's clock: how long own beats were heard, in all
	echo    time.Duration // when the last own beat came back, by the monotonic clock
	echoed  bool          // an own beat has come back
	members map[string]*seen
	left    map[string]bool // names whose keys were removed
}

type seen struct {
	Beat
	revision uint64
	changed  bool          // a new revision came since the watch began; what was there before may be old
	at       time.Duration // when it was last heard, by roster.heard
}

func newRoster(session string, interval, bound time.Duration) *roster {
	return &roster{self: session, bound: bound, maxGap: 2 * interval, members: make(map[string]*seen), left: make(map[string]bool)}
}

// beat takes a member's beat. first says that it was in the bucket before the watch began; then it is no sign of life, only a change
// is. Any other revision is a change, even a lower one: a bucket that was made anew counts from one again. A beat of another session than
// the one that is live under its name says nothing: nobody takes over a name before the other session has been silent for the bound, or
// has removed its key.
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
	if b.Session != s.Session && b.Session != r.self && r.isLive(s) {
		s.revision = revision
		return
	}
	if s.revision != revision {
		*s = seen{Beat: b, revision: revision, changed: true, at: r.heard}
	}
}

// revision is the revision of a member's newest beat; 0 if there is none.
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

// missing tells whether for one of these nodes there is neither a key, nor was one removed: then its key was in a bucket that is lost.
func (r *roster) missing(nodes []Node) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return r.members[n.Name] == nil && !r.left[n.Name] })
}

// live lists the live members in order of names.
func (r *roster) live() []Beat {
	return r.list(r.isLive)
}

func (r *roster) isLive(s *seen) bool { return s.changed && r.heard-s.at <= r.bound }

// remembered is how long a dead member is listed as silent: it may still come back.
const remembered = 10 * time.Minute

// silent lists the members that died not long ago.
func (r *roster) silent() []Beat {
	return r.list(func(s *seen) bool { return !r.isLive(s) && r.heard-s.at <= remembered })
}

// abandonedAfter is the silence after which a member's key is removed.
const abandonedAfter = time.Hour

// abandoned finds a member that was silent for longer than that, and its revision.
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

// settled tells whether the roster can judge everybody: each member has either beaten or had the time to.
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
