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

// Seat names the node that should serve a partition and those that should follow it.
type Seat struct {
	Owner    string   `json:"owner"`
	Standbys []string `json:"standbys,omitempty"` // the first takes over first
}

// Placement is a seat for each partition.
type Placement []Seat

// Equal compares two placements.
func (p Placement) Equal(q Placement) bool {
	return slices.EqualFunc(p, q, func(a, b Seat) bool { return a.Owner == b.Owner && slices.Equal(a.Standbys, b.Standbys) })
}

// Place seats partitions on the live nodes, each with an owner and at most so many standbys. It moves as little of the placement
// before as the nodes' shares allow. The result depends only on the arguments, and not on the order of nodes, whose names
// must differ. If no node has a weight, all seats are empty.
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
	p.owners()
	if standbys > 0 {
		p.firstStandbys()
	}
	for level := 1; level < standbys; level++ {
		p.moreStandbys(level)
	}
	return p.placement()
}

const nobody = -1

// placer is one call of Place. Nodes are named by their index.
type placer struct {
	nodes  []Node
	shares []int
	was    [][]int // by partition: owner, first standby, …; nobody for one that is gone
	seats  [][]int // the same, as they will be
}

func newPlacer(before Placement, nodes []Node, partitions int) *placer {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Weight <= 0 })
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	p := &placer{nodes: nodes, shares: shares(nodes, partitions), was: make([][]int, partitions), seats: make([][]int, partitions)}
	for i := range p.was {
		if i >= len(before) {
			p.was[i] = []int{nobody}
			continue
		}
		p.was[i] = append(p.was[i], p.index(before[i].Owner))
		for _, name := range before[i].Standbys {
			p.was[i] = append(p.was[i], p.index(name))
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
	placed := make(Placement, len(p.seats))
	for i, seat := range p.seats {
		for level, n := range seat {
			if level == 0 {
				placed[i].Owner = p.nodes[n].Name
			} else {
				placed[i].Standbys = append(placed[i].Standbys, p.nodes[n].Name)
			}
		}
	}
	return placed
}

// owners gives each node its share: it keeps what it has, up to its share, and gets what fits it best of the rest.
func (p *placer) owners() {
	room, excess := slices.Clone(p.shares), make([]int, len(p.nodes))
	for _, seat := range p.was {
		if n := seat[0]; n != nobody {
			room[n]--
		}
	}
	for n := range room {
		excess[n], room[n] = max(-room[n], 0), max(room[n], 0)
	}
	var wishes []wish
	for i, seat := range p.was {
		if seat[0] != nobody && excess[seat[0]] == 0 {
			continue
		}
		for n := range p.nodes {
			if room[n] > 0 {
				wishes = append(wishes, p.wish(i, n, 0))
			}
		}
	}
	moved := grant(wishes, room, func(w wish) bool {
		owner := p.was[w.partition][0]
		if owner != nobody && excess[owner] == 0 {
			return false
		}
		if owner != nobody {
			excess[owner]--
		}
		return true
	})
	for i, seat := range p.was {
		if n, ok := moved[i]; ok {
			p.seats[i] = []int{n}
		} else if seat[0] != nobody {
			p.seats[i] = []int{seat[0]}
		}
	}
}

// firstStandbys makes the first standby of each partition the node that would own it without its owner.
func (p *placer) firstStandbys() {
	owned := make([][]int, len(p.nodes))
	for i, seat := range p.seats {
		if len(seat) > 0 {
			owned[seat[0]] = append(owned[seat[0]], i)
		}
	}
	for owner, partitions := range owned {
		apart := func(n int) bool { return n != owner && !p.sameZone(n, owner) }
		if !slices.ContainsFunc(p.indices(), apart) {
			apart = func(n int) bool { return n != owner }
		}
		room := slices.Clone(p.shares)
		award(p.nodes, room, len(partitions), apart)
		var wishes []wish
		for n := range room {
			room[n] -= p.shares[n]
			for _, i := range partitions {
				if room[n] > 0 {
					wishes = append(wishes, p.wish(i, n, 1))
				}
			}
		}
		p.seat(grant(wishes, room, nil))
	}
}

// moreStandbys seats the standbys of one level: about as many on each node as it owns partitions, if zones and the other
// seats allow it. Standbys of the placement before stay if they may; then nodes with too many give to nodes with too few.
func (p *placer) moreStandbys(level int) {
	room := slices.Clone(p.shares)
	var wishes []wish
	for i, seat := range p.seats {
		free := p.apart(i, level)
		if len(p.was[i]) > level+1 && slices.Contains(free, p.was[i][level+1]) {
			room[p.was[i][level+1]]--
			p.seats[i] = append(seat, p.was[i][level+1])
			continue
		}
		for _, n := range free {
			wishes = append(wishes, p.wish(i, n, level+1))
		}
	}
	granted := grant(wishes, slices.Clone(room), nil)
	for _, w := range wishes { // grant has sorted them, so a partition that found no room gets its best wish
		if _, ok := granted[w.partition]; !ok {
			granted[w.partition] = w.node
		}
	}
	for _, n := range granted {
		room[n]--
	}
	p.seat(granted)
	p.even(level, room)
}

// even moves standbys of one level from nodes with negative room to nodes with room.
func (p *placer) even(level int, room []int) {
	var wishes []wish
	for i, seat := range p.seats {
		if len(seat) <= level+1 || room[seat[level+1]] >= 0 {
			continue
		}
		p.seats[i] = seat[:level+1]
		for _, n := range p.apart(i, level) {
			if room[n] > 0 {
				wishes = append(wishes, p.wish(i, n, level+1))
			}
		}
		p.seats[i] = seat
	}
	slices.SortFunc(wishes, wish.compare)
	for _, w := range wishes {
		from := p.seats[w.partition][level+1]
		if room[from] < 0 && room[w.node] > 0 {
			p.seats[w.partition][level+1] = w.node
			room[from]++
			room[w.node]--
		}
	}
}

// apart lists the nodes that may take the partition's next seat, if the seats before it are taken: those in zones where it has
// no seat yet; if there are none, any other node.
func (p *placer) apart(partition, level int) []int {
	seat := p.seats[partition]
	if len(seat) != level+1 {
		return nil
	}
	others := slices.DeleteFunc(p.indices(), func(n int) bool { return slices.Contains(seat, n) })
	far := slices.DeleteFunc(slices.Clone(others), func(n int) bool {
		return slices.ContainsFunc(seat, func(taken int) bool { return p.sameZone(n, taken) })
	})
	if len(far) > 0 {
		return far
	}
	return others
}

func (p *placer) seat(granted map[int]int) {
	for i := range p.seats {
		if n, ok := granted[i]; ok {
			p.seats[i] = append(p.seats[i], n)
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

// wish is a partition that could go to a node.
type wish struct {
	partition, node int
	order           int // 0: the node was the owner; 1: it had this seat (for an owner's: the first standby's); 2: another seat; 3: none
	score           uint64
}

func (p *placer) wish(partition, node, level int) wish {
	w := wish{partition: partition, node: node, order: 3, score: score(partition, p.nodes[node].Name)}
	switch at := slices.Index(p.was[partition], node); {
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

func (w wish) compare(v wish) int {
	return cmp.Or(cmp.Compare(w.order, v.order), cmp.Compare(v.score, w.score),
		cmp.Compare(w.partition, v.partition), cmp.Compare(w.node, v.node))
}

// grant sorts the wishes and grants the best ones for which there is room, one for each partition. may, if not nil, is asked
// last, and may refuse one.
func grant(wishes []wish, room []int, may func(wish) bool) map[int]int {
	slices.SortFunc(wishes, wish.compare)
	granted := make(map[int]int)
	for _, w := range wishes {
		if _, done := granted[w.partition]; done || room[w.node] <= 0 || may != nil && !may(w) {
			continue
		}
		granted[w.partition] = w.node
		room[w.node]--
	}
	return granted
}
