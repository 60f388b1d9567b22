package cluster

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Node is what placement knows of a member.
type Node struct {
	Name   string `json:"name"`
	Weight int    `json:"weight"`         // its share of partitions, relative to the others' weights; 0 to MaxWeight; 0: gets none
	Zone   string `json:"zone,omitempty"` // nodes of one zone may fail together; without a zone a node is one of its own
}

// MaxWeight is the greatest weight of a node.
const MaxWeight = 1000

// Assignment names the node that should serve a partition and those that should follow it.
type Assignment struct {
	Owner    string   `json:"owner"`
	Standbys []string `json:"standbys,omitempty"` // the first takes over first
}

// Placement is an assignment for each partition.
type Placement []Assignment

// Equal compares two placements.
func (p Placement) Equal(q Placement) bool {
	return slices.EqualFunc(p, q, func(a, b Assignment) bool { return a.Owner == b.Owner && slices.Equal(a.Standbys, b.Standbys) })
}

// Place assigns partitions to the live nodes, each with an owner and at most so many standbys. It moves as little of the placement
// before as the nodes' shares allow. The result depends only on the arguments, and not on the order of nodes, whose names
// must differ. If no node has a weight, all assignments are empty.
//
// Each node owns exactly its share (see shares), at most ⌈partitions × weight ÷ all weights⌉. A partition stays where
// it is unless its owner is gone or has more than its share. Because of what shares guarantees, this holds after a change of
// one node: a node that came takes its share, and nothing else moves; a node that went loses its partitions, and nothing else
// moves. A partition that moves goes first to a node that follows it already, else where rendezvous hashing would put it.
//
// Why rendezvous hashing alone is not enough: a rule that depends only on which nodes are there, and moves only what it must,
// is a fixed ranking of all nodes for each partition. Then nothing bounds how many partitions one node
// leads. The bound needs the placement before, which is kept in the bucket (see Member).
//
// Standbys are in other zones than the owner and each other, if there are such nodes. The first standbys
// of a node's partitions are distributed as the partitions would be if that node went. So, unless zones forbid it, each of
// them is promoted then, and no partition goes to a node that has to catch up.
func Place(before Placement, nodes []Node, partitions, standbys int) Placement {
	p := newPlacer(before, nodes, partitions)
	p.assignOwners()
	if standbys > 0 {
		p.assignFirstStandbys()
	}
	for level := 1; level < standbys; level++ {
		p.assignStandbys(level)
	}
	return p.placement()
}

const nobody = -1

// placer is one call of Place. Nodes are named by their index.
type placer struct {
	nodes  []Node
	shares []int
	before [][]int // by partition: owner, first standby, …; nobody for one that is gone
	after  [][]int // the same, as they will be
}

func newPlacer(before Placement, nodes []Node, partitions int) *placer {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Weight <= 0 })
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	p := &placer{nodes: nodes, shares: shares(nodes, partitions), before: make([][]int, partitions), after: make([][]int, partitions)}
	for i := range p.before {
		if i >= len(before) {
			p.before[i] = []int{nobody}
			continue
		}
		p.before[i] = append(p.before[i], p.index(before[i].Owner))
		for _, name := range before[i].Standbys {
			p.before[i] = append(p.before[i], p.index(name))
		}
	}
	return p
}

func (p *placer) index(name string) int {
	i, found := slices.BinarySearchFunc(p.nodes, name, func(n Node, name string) int { return strings.Compare(n.Name, name) })
	if !found {
		return nobody
	}
	return i
}

func (p *placer) placement() Placement {
	placed := make(Placement, len(p.after))
	for i, assigned := range p.after {
		for level, n := range assigned {
			if level == 0 {
				placed[i].Owner = p.nodes[n].Name
			} else {
				placed[i].Standbys = append(placed[i].Standbys, p.nodes[n].Name)
			}
		}
	}
	return placed
}

// assignOwners gives each node its share: it keeps what it has, up to its share, and gets what fits it best of the rest.
func (p *placer) assignOwners() {
	room, excess := slices.Clone(p.shares), make([]int, len(p.nodes))
	for _, assigned := range p.before {
		if n := assigned[0]; n != nobody {
			room[n]--
		}
	}
	for n := range room {
		excess[n], room[n] = max(-room[n], 0), max(room[n], 0)
	}
	var candidates []candidate
	for i, assigned := range p.before {
		if assigned[0] != nobody && excess[assigned[0]] == 0 {
			continue
		}
		for n := range p.nodes {
			if room[n] > 0 {
				candidates = append(candidates, p.candidate(i, n, 0))
			}
		}
	}
	moved := pick(candidates, room, func(w candidate) bool {
		owner := p.before[w.partition][0]
		if owner != nobody && excess[owner] == 0 {
			return false
		}
		if owner != nobody {
			excess[owner]--
		}
		return true
	})
	for i, assigned := range p.before {
		if n, ok := moved[i]; ok {
			p.after[i] = []int{n}
		} else if assigned[0] != nobody {
			p.after[i] = []int{assigned[0]}
		}
	}
}

// assignFirstStandbys makes the first standby of each partition the node that would own it without its owner.
func (p *placer) assignFirstStandbys() {
	owned := make([][]int, len(p.nodes))
	for i, assigned := range p.after {
		if len(assigned) > 0 {
			owned[assigned[0]] = append(owned[assigned[0]], i)
		}
	}
	for owner, partitions := range owned {
		apart := func(n int) bool { return n != owner && !p.sameZone(n, owner) }
		if !slices.ContainsFunc(p.indices(), apart) {
			apart = func(n int) bool { return n != owner }
		}
		room := slices.Clone(p.shares)
		apportion(p.nodes, room, len(partitions), apart)
		var candidates []candidate
		for n := range room {
			room[n] -= p.shares[n]
			for _, i := range partitions {
				if room[n] > 0 {
					candidates = append(candidates, p.candidate(i, n, 1))
				}
			}
		}
		p.add(pick(candidates, room, nil))
	}
}

// assignStandbys assigns the standbys of one level: about as many to each node as it owns partitions, if zones and the other
// assignments allow it. Standbys of the placement before stay if they may; then nodes with too many give to nodes with too few.
func (p *placer) assignStandbys(level int) {
	room := slices.Clone(p.shares)
	var candidates []candidate
	for i, assigned := range p.after {
		free := p.eligible(i, level)
		if len(p.before[i]) > level+1 && slices.Contains(free, p.before[i][level+1]) {
			room[p.before[i][level+1]]--
			p.after[i] = append(assigned, p.before[i][level+1])
			continue
		}
		for _, n := range free {
			candidates = append(candidates, p.candidate(i, n, level+1))
		}
	}
	picked := pick(candidates, slices.Clone(room), nil)
	for _, w := range candidates { // pick has sorted them, so a partition that found no room gets its best candidate
		if _, ok := picked[w.partition]; !ok {
			picked[w.partition] = w.node
		}
	}
	for _, n := range picked {
		room[n]--
	}
	p.add(picked)
	p.rebalance(level, room)
}

// rebalance moves standbys of one level from nodes with negative room to nodes with room.
func (p *placer) rebalance(level int, room []int) {
	var candidates []candidate
	for i, assigned := range p.after {
		if len(assigned) <= level+1 || room[assigned[level+1]] >= 0 {
			continue
		}
		p.after[i] = assigned[:level+1]
		for _, n := range p.eligible(i, level) {
			if room[n] > 0 {
				candidates = append(candidates, p.candidate(i, n, level+1))
			}
		}
		p.after[i] = assigned
	}
	slices.SortFunc(candidates, candidate.compare)
	for _, w := range candidates {
		from := p.after[w.partition][level+1]
		if room[from] < 0 && room[w.node] > 0 {
			p.after[w.partition][level+1] = w.node
			room[from]++
			room[w.node]--
		}
	}
}

// eligible lists the nodes that may become the partition's next standby, once the levels before it are assigned: those in zones where
// it has no node yet; if there are none, any other node.
func (p *placer) eligible(partition, level int) []int {
	assigned := p.after[partition]
	if len(assigned) != level+1 {
		return nil
	}
	others := slices.DeleteFunc(p.indices(), func(n int) bool { return slices.Contains(assigned, n) })
	far := slices.DeleteFunc(slices.Clone(others), func(n int) bool {
		return slices.ContainsFunc(assigned, func(taken int) bool { return p.sameZone(n, taken) })
	})
	if len(far) > 0 {
		return far
	}
	return others
}

func (p *placer) add(picked map[int]int) {
	for i := range p.after {
		if n, ok := picked[i]; ok {
			p.after[i] = append(p.after[i], n)
		}
	}
}

func (p *placer) indices() []int {
	all := make([]int, len(p.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}

func (p *placer) sameZone(a, b int) bool {
	return p.nodes[a].Zone != "" && p.nodes[a].Zone == p.nodes[b].Zone
}

// candidate is a node that a partition could go to.
type candidate struct {
	partition, node int
	order           int // 0: the node was the owner; 1: it had this place (for an owner's: the first standby's); 2: another place; 3: none
	score           uint64
}

func (p *placer) candidate(partition, node, level int) candidate {
	w := candidate{partition: partition, node: node, order: 3, score: score(partition, p.nodes[node].Name)}
	switch at := slices.Index(p.before[partition], node); {
	case at == 0:
		w.order = 0
	case at > 0 && (at == level || level == 0 && at == 1):
		w.order = 1
	case at > 0:
		w.order = 2
	}
	return w
}

// score is the weight of rendezvous hashing: the node with the highest score is the partition's first choice. It is
// a few lines over a hash that is used already. The libraries for it (github.com/dgryski/go-rendezvous, last changed
// in 2020) return only the first choice, but a bound on the load needs all nodes in order.
func score(partition int, node string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(uint64(partition))
	_, _ = d.WriteString(node)
	return d.Sum64()
}

func (w candidate) compare(v candidate) int {
	return cmp.Or(cmp.Compare(w.order, v.order), cmp.Compare(v.score, w.score),
		cmp.Compare(w.partition, v.partition), cmp.Compare(w.node, v.node))
}

// pick sorts the candidates and picks the best ones for which there is room, one for each partition. may, if not nil, is asked
// last, and may refuse one.
func pick(candidates []candidate, room []int, may func(candidate) bool) map[int]int {
	slices.SortFunc(candidates, candidate.compare)
	picked := make(map[int]int)
	for _, w := range candidates {
		if _, done := picked[w.partition]; done || room[w.node] <= 0 || may != nil && !may(w) {
			continue
		}
		picked[w.partition] = w.node
		room[w.node]--
	}
	return picked
}
