package cluster

import (
	"cmp"
	"slices"
)

// View is the cluster as one member sees it. Two members' views may differ for a while; nothing that must be
// right depends on them (see the package's text).
type View struct {
	Members   []Beat    // live, by name
	Silent    []Beat    // by name: those that died in the last ten minutes, as they were heard last; not who left
	Placement Placement // as it stands in the bucket; it may still name a member that is gone
	Revision  uint64    // of the placement, for people; 0: of a bucket that is gone
}

// Member finds a live member.
func (v View) Member(name string) (Beat, bool) {
	i := slices.IndexFunc(v.Members, func(b Beat) bool { return b.Name == name })
	if i < 0 {
		return Beat{}, false
	}
	return v.Members[i], true
}

// Standbys names those who are to follow a partition, the first to take over first.
func (v View) Standbys(partition int) []string {
	if partition >= len(v.Placement) {
		return nil
	}
	return v.Placement[partition].Standbys
}

// Serving names the member that says it serves a partition, the one of the latest claim if several do; "" when none does.
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

// Follower names a member that follows a partition: who serves it, or else who is furthest; "" when none does.
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

// Claimant names the member that should serve a partition now: its owner, once that is caught up; until then
// whoever serves it and is not draining, or else the first standby that is caught up, or else whoever serves it, or who is
// furthest. Caught up is within so many records of the log of the member that is furthest. "" when nobody is live.
//
// A member that finds its own name here, and does not serve the partition, claims it.
func (v View) Claimant(partition int, within uint64) string {
	serving, ahead := v.Serving(partition), v.furthest(partition)
	first, _ := v.Member(ahead)
	front, _ := first.Progress(partition)
	caughtUp := func(name string) bool {
		b, live := v.Member(name)
		p, ok := b.Progress(partition)
		return live && ok && front.Position-p.Position <= within
	}
	var seat Seat
	if partition < len(v.Placement) {
		seat = v.Placement[partition]
	}
	_, live := v.Member(seat.Owner)
	server, _ := v.Member(serving)
	switch {
	case live && (ahead == "" || caughtUp(seat.Owner)):
		return seat.Owner
	case serving != "" && !server.Draining: // a member that leaves is not kept by an owner-to-be that may never catch up
		return serving
	}
	if i := slices.IndexFunc(seat.Standbys, caughtUp); i >= 0 {
		return seat.Standbys[i]
	}
	return cmp.Or(serving, ahead)
}

func (v View) equal(w View) bool {
	return v.Revision == w.Revision && v.Placement.Equal(w.Placement) &&
		slices.EqualFunc(v.Members, w.Members, func(a, b Beat) bool { return a.sameAs(&b) })
}
