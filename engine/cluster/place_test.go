package cluster

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPlaceByHand(t *testing.T) {
	three := equalNodes(3)
	placed := Place(nil, three, 8, 1)
	if counts := owned(placed); counts["n0"] != 3 || counts["n1"] != 3 || counts["n2"] != 2 {
		t.Fatalf("8 partitions on three nodes: %v", counts)
	}
	four := Place(placed, equalNodes(4), 8, 1)
	if moved := moves(placed, four); len(moved) != 2 || owned(four)["n3"] != 2 {
		t.Fatalf("a fourth node: %v moved, it owns %d", moved, owned(four)["n3"])
	}
	for _, p := range moves(placed, four) {
		if four[p].Standbys[0] != placed[p].Owner {
			t.Errorf("partition %d went from %s to a fourth node, and %s stands by", p, placed[p].Owner, four[p].Standbys[0])
		}
	}
	if back := Place(four, three, 8, 1); len(moves(four, back)) != 2 {
		t.Fatalf("a fourth node left: %v moved", moves(four, back))
	}
	if alone := Place(placed, three[:1], 8, 1); owned(alone)["n0"] != 8 || alone[0].Standbys != nil {
		t.Fatalf("one node: %v", alone)
	}
	if none := Place(placed, nil, 8, 1); len(none) != 8 || none[0].Owner != "" || none[0].Standbys != nil {
		t.Fatalf("no node: %v", none)
	}
	heavy := []Node{{Name: "a", Weight: 3}, {Name: "b", Weight: 1}, {Name: "leaving"}}
	if counts := owned(Place(nil, heavy, 8, 1)); counts["a"] != 6 || counts["b"] != 2 {
		t.Fatalf("weights 3, 1 and 0: %v", counts)
	}
}

// The first assignments are those of rendezvous hashing if the bound allows it, and the hash favours no node: each is the first choice for
// about as many of many partitions.
func TestScoresAreEven(t *testing.T) {
	const partitions, nodes = 8192, 8
	first := make(map[int]int)
	for p := range partitions {
		best := 0
		for n := range nodes {
			if score(p, fmt.Sprintf("engine-%d", n)) > score(p, fmt.Sprintf("engine-%d", best)) {
				best = n
			}
		}
		first[best]++
	}
	for n, got := range first { // 1024 expected, with a standard deviation of 30
		if got < 1024-180 || got > 1024+180 {
			t.Errorf("node %d is the first choice of %d of %d partitions", n, got, partitions)
		}
	}
}

// A newcomer takes its share and nothing else moves; a node that leaves loses its own and nothing else moves. The
// shares are never above ⌈partitions × weight ÷ all weights⌉. All of this holds for any weights.
func TestPlaceMovesOnlyWhatItMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		partitions, standbys := rapid.IntRange(1, 64).Draw(t, "partitions"), rapid.IntRange(0, 3).Draw(t, "standbys")
		placed := Place(nil, nodes, partitions, standbys)
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			changed := slices.Clone(nodes)
			if len(nodes) > 1 && rapid.Bool().Draw(t, "leaves") {
				at := rapid.IntRange(0, len(nodes)-1).Draw(t, "who")
				changed = slices.Delete(changed, at, at+1)
				next := Place(placed, changed, partitions, standbys)
				for _, p := range moves(placed, next) {
					if placed[p].Owner != nodes[at].Name {
						t.Fatalf("%s left, and partition %d moved from %s to %s", nodes[at].Name, p, placed[p].Owner, next[p].Owner)
					}
				}
				placed = next
			} else {
				n := Node{Name: fmt.Sprintf("new%d", rapid.IntRange(0, 1<<30).Draw(t, "name")), Weight: rapid.IntRange(1, 5).Draw(t, "weight")}
				if slices.ContainsFunc(nodes, func(m Node) bool { return m.Name == n.Name }) {
					continue
				}
				changed = append(changed, n)
				next := Place(placed, changed, partitions, standbys)
				for _, p := range moves(placed, next) {
					if next[p].Owner != n.Name {
						t.Fatalf("%s came, and partition %d moved from %s to %s", n.Name, p, placed[p].Owner, next[p].Owner)
					}
				}
				placed = next
			}
			nodes = changed
			checkPlacement(t, placed, nodes, partitions, standbys)
		}
	})
}

// Whatever changes at once among the nodes, no more owners move than the shares differ.
func TestPlaceMovesNoMoreThanTheSharesDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 64).Draw(t, "partitions")
		placed := Place(nil, drawNodes(t), partitions, 1)
		nodes := drawNodes(t)
		next := Place(placed, nodes, partitions, 1)
		was, is, want := owned(placed), owned(next), 0
		for name, n := range is {
			want += max(n-was[name], 0)
		}
		if got := len(moves(placed, next)); got != want {
			t.Fatalf("%d partitions moved, the shares differ by %d", got, want)
		}
	})
}

func TestPlaceIsDeterministicAndSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, standbys := rapid.IntRange(1, 64).Draw(t, "partitions"), rapid.IntRange(0, 3).Draw(t, "standbys")
		before := Place(nil, drawNodes(t), partitions, standbys)
		nodes := drawNodes(t)
		placed := Place(before, nodes, partitions, standbys)
		if again := Place(before, rapid.Permutation(nodes).Draw(t, "order"), partitions, standbys); !placed.Equal(again) {
			t.Fatalf("the order of nodes matters:\n%v\n%v", placed, again)
		}
		if again := Place(placed, nodes, partitions, standbys); !placed.Equal(again) {
			t.Fatalf("placed again it moves:\n%v\n%v", placed, again)
		}
		checkPlacement(t, placed, nodes, partitions, standbys)
	})
}

// Unless zones forbid it, each partition of a node that goes is taken over by its first standby, so that none
// waits for a node to catch up.
func TestFirstStandbysTakeOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		for i := range nodes {
			nodes[i].Zone = ""
		}
		partitions, standbys := rapid.IntRange(1, 64).Draw(t, "partitions"), rapid.IntRange(1, 3).Draw(t, "standbys")
		placed := Place(Place(nil, drawNodes(t), partitions, standbys), nodes, partitions, standbys)
		gone := rapid.IntRange(0, len(nodes)-1).Draw(t, "gone")
		rest := slices.Delete(slices.Clone(nodes), gone, gone+1)
		if len(rest) == 0 {
			return
		}
		for p, assigned := range Place(placed, rest, partitions, standbys) {
			if was := placed[p]; was.Owner == nodes[gone].Name && assigned.Owner != was.Standbys[0] {
				t.Fatalf("%s went: partition %d has standby %s and goes to %s", was.Owner, p, was.Standbys[0], assigned.Owner)
			}
		}
	})
}

// How much of 1024 partitions an eleventh node takes: its share of owners, exactly.
func TestPlaceAtSize(t *testing.T) {
	placed := Place(nil, equalNodes(10), 1024, 2)
	next := Place(placed, equalNodes(11), 1024, 2)
	if got := len(moves(placed, next)); got != 93 { // 1024 ÷ 11 = 93.09
		t.Fatalf("%d owners moved", got)
	}
	follow := 0
	for p := range placed {
		for _, name := range next[p].Standbys {
			if name != placed[p].Owner && !slices.Contains(placed[p].Standbys, name) {
				follow++
			}
		}
	}
	if follow > 2*1024/4 {
		t.Fatalf("%d of 2048 standbys begin to follow a partition anew", follow)
	}
	t.Logf("%d of 2048 standbys follow a partition anew", follow)
}

// Each node is the second standby of about as many partitions as it owns, even after others came or went.
func TestSecondStandbysAreEven(t *testing.T) {
	var placed Placement
	for _, n := range []int{4, 5, 8, 3} {
		placed = Place(placed, equalNodes(n), 64, 2)
		counts := make(map[string]int)
		for _, assigned := range placed {
			counts[assigned.Standbys[1]]++
		}
		for name, own := range owned(placed) {
			if got := counts[name]; got < own-1 || got > own+1 {
				t.Errorf("of %d nodes %s owns %d partitions and is the second standby of %d", n, name, own, got)
			}
		}
	}
}

func checkPlacement(t *rapid.T, placed Placement, nodes []Node, partitions, standbys int) {
	t.Helper()
	weights, zones := 0, make(map[string]string)
	for _, n := range nodes {
		weights += n.Weight
		zones[n.Name] = n.Zone
		if n.Zone == "" {
			zones[n.Name] = "of " + n.Name
		}
	}
	counts := owned(placed)
	for _, n := range nodes {
		if most := (partitions*n.Weight + weights - 1) / weights; counts[n.Name] > most {
			t.Fatalf("%s owns %d of %d partitions, its share is %d", n.Name, counts[n.Name], partitions, most)
		}
	}
	differ := make(map[string]bool)
	for _, zone := range zones {
		differ[zone] = true
	}
	if len(placed) != partitions {
		t.Fatalf("%d assignments", len(placed))
	}
	for p, assigned := range placed {
		all := append([]string{assigned.Owner}, assigned.Standbys...)
		if len(all) != min(standbys+1, len(nodes)) {
			t.Fatalf("partition %d has %v", p, all)
		}
		apart := make(map[string]bool)
		for i, name := range all {
			if zones[name] == "" || slices.Contains(all[:i], name) {
				t.Fatalf("partition %d has %v", p, all)
			}
			apart[zones[name]] = true
		}
		if len(apart) != min(len(all), len(differ)) {
			t.Fatalf("partition %d has %v, in %d zones of %d", p, all, len(apart), len(differ))
		}
	}
}

func drawNodes(t *rapid.T) []Node {
	names := rapid.SliceOfNDistinct(rapid.IntRange(0, 30), 1, 12, rapid.ID).Draw(t, "names")
	nodes := make([]Node, len(names))
	for i, n := range names {
		nodes[i] = Node{
			Name: fmt.Sprintf("n%d", n), Weight: rapid.IntRange(1, 5).Draw(t, "weight"),
			Zone: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"),
		}
	}
	return nodes
}

func equalNodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprintf("n%d", i), Weight: 1}
	}
	return nodes
}

func owned(p Placement) map[string]int {
	counts := make(map[string]int)
	for _, assigned := range p {
		counts[assigned.Owner]++
	}
	return counts
}

// moves lists the partitions that change their owner.
func moves(from, to Placement) []int {
	var moved []int
	for p := range from {
		if from[p].Owner != to[p].Owner {
			moved = append(moved, p)
		}
	}
	return moved
}

// A placement fits only what it was made for.
func TestPlacementFits(t *testing.T) {
	p := storedPlacement{Nodes: equalNodes(3), Standbys: 1, Assignments: Place(nil, equalNodes(3), 8, 1)}
	if !p.fits(equalNodes(3), 8, 1) || p.fits(equalNodes(2), 8, 1) || p.fits(equalNodes(3), 9, 1) || p.fits(equalNodes(3), 8, 2) {
		t.Error("another number of nodes, partitions or standbys is the same")
	}
}
