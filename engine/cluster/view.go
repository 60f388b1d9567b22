package cluster

import (
	"cmp"
	"slices"
)

// View is the cluster as one member sees it. Two members' views may differ for a while; correctness does not
// depend on them (see the package doc).
type View struct {
	Members   []Beat    // the live ones, in order of names
	Silent    []Beat    // those that died in the last ten minutes, as last heard, in order of names; not those that left
	Placement Placement // as it is in the bucket; it may still name a member that is gone
	Revision  uint64    // of the placement, for people; 0: the bucket has none
}

// Member finds a live member.
func (v View) Member(name string) (Beat, bool) {
	i := slices.IndexFunc(v.Members, func(b Beat) bool { return b.Name == name })
	if i < 0 {
		return Beat{}, false
	}
	return v.Members[i], true
}

// Standbys names the nodes that should follow a partition; the first one takes over first.
func (v View) Standbys(partition int) []string {
	if partition >= len(v.Placement) {
		return nil
	}
	return v.Placement[partition].Standbys
}

// Serving names the member that says it serves a partition, the one with the latest claim if several do; "" if none does.
func (v View) Serving(partition int) string {
	var epoch uint64
	serving := ""
	for i := range v.Members {
		if p, ok := v.Members[i].Progress(partition); ok && p.Epoch > epoch {
			epoch, serving = p.Epoch, v.Members[i].Name
		}
	}
	return serving
}

// Follower names a member that follows a partition: the one that serves it, or else the one that is furthest; "" if none does.
func (v View) Follower(partition int) string {
	if serving := v.Serving(partition); serving != "" {
		return serving
	}
	return v.furthest(partition)
}

func (v View) furthest(partition int) (name string) {
	var furthest uint64
	for i := range v.Members {
		p, ok := v.Members[i].Progress(partition)
		if ok && (name == "" || p.Position > furthest) {
			furthest, name = p.Position, v.Members[i].Name
		}
	}
	return name
}

// Claimant names the member that should serve a partition now: its owner, once that has caught up. Until then it is the member that
// serves it and is not draining; else the first standby that has caught up; else the member that serves it, or is
// furthest. A member has caught up if it is within so many records of the one that is furthest. "" if nobody is live.
//
// A member that finds its own name here, and does not serve the partition, should claim it.
func (v View) Claimant(partition int, within uint64) string {
	serving, ahead := v.Serving(partition), v.furthest(partition)
	first, _ := v.Member(ahead)
	front, _ := first.Progress(partition)
	caughtUp := func(name string) bool {
		b, live := v.Member(name)
		p, ok := b.Progress(partition)
		return live && ok && front.Position-p.Position <= within
	}
	var assigned Assignment
	if partition < len(v.Placement) {
		assigned = v.Placement[partition]
	}
	_, live := v.Member(assigned.Owner)
	server, _ := v.Member(serving)
	switch {
	case live && (ahead == "" || caughtUp(assigned.Owner)):
		return assigned.Owner
	case serving != "" && !server.Draining: // not a draining one: the owner-to-be may never catch up, and would keep it from leaving
		return serving
	}
	if i := slices.IndexFunc(assigned.Standbys, caughtUp); i >= 0 {
		return assigned.Standbys[i]
	}
	return cmp.Or(serving, ahead)
}

func (v View) equal(w View) bool {
	return v.Revision == w.Revision && v.Placement.Equal(w.Placement) &&
		slices.EqualFunc(v.Members, w.Members, func(a, b Beat) bool { return a.sameAs(&b) })
}
