package node

import (
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/cluster"
)

// The nodes of a service: their status, and how one is drained.

// nodes returns the status of all nodes of a view, in order of names.
func (n *Node) nodes(v cluster.View) (list []carillon.NodeStatus) {
	applied := n.applied.Load()
	add := func(b *cluster.Beat, state carillon.NodeState) {
		s := carillon.NodeStatus{
			Node: b.Name, State: state, Zone: b.Zone, Weight: b.Weight, Version: b.Version, ClockOffset: b.ClockOffsetMS,
		}
		for _, p := range b.Partitions {
			s.Position = max(s.Position, p.Position)
			if p.Epoch != 0 && state != carillon.NodeSilent {
				s.Serves++
			}
		}
		for p := range v.Placement {
			if slices.Contains(v.Standbys(p), b.Name) {
				s.Standby++
			}
		}
		s.Lag = applied - min(applied, s.Position)
		list = append(list, s)
	}
	for i := range v.Members {
		state := carillon.NodeLive
		if v.Members[i].Draining {
			state = carillon.NodeDraining
		}
		add(&v.Members[i], state)
	}
	for i := range v.Silent {
		add(&v.Silent[i], carillon.NodeSilent)
	}
	slices.SortFunc(list, func(a, b carillon.NodeStatus) int { return strings.Compare(a.Node, b.Node) })
	return list
}

// apiDrain has this node hand over the partitions that it serves, or take its share again, unless it drains for a reason of its own.
func (n *Node) apiDrain(c *call) error {
	r, err := carillon.ParseDrain(c.Data())
	if err != nil {
		return err
	}
	if n.membership.draining.Swap(!r.Undo) == r.Undo {
		n.log.Info("asked to drain", "undo", r.Undo)
	}
	return c.answer((&carillon.DrainReply{Node: n.o.Name, Draining: n.drains(), Serves: n.serves()}).AppendJSON(nil))
}
