package cluster

// shares says how many partitions each node gets, in the order of nodes. Seats are given one after the
// other, each to the node whose weight ÷ seats so far is greatest (Adams's method of apportionment). Nodes without
// a seat come first; ties go to the heavier node, then to the lesser name.
//
// Why not round each share up or down: a divisor method gives a set of nodes its seats in the same order whichever other nodes are
// there. So one more node takes seats from the others and moves none between them, for any weights. Of the divisor
// methods, Adams's is the one that never gives more than the share rounded up.
func shares(nodes []Node, partitions int) []int {
	seats := make([]int, len(nodes))
	apportion(nodes, seats, partitions, func(int) bool { return true })
	return seats
}

// apportion gives count more seats to the nodes that may have them; none if no such node has a weight.
func apportion(nodes []Node, seats []int, count int, may func(i int) bool) {
	for range count {
		best := -1
		for i, n := range nodes {
			if n.Weight > 0 && may(i) && (best < 0 || precedes(n, seats[i], nodes[best], seats[best])) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		seats[best]++
	}
}

// precedes tells whether node a, which has so many seats, gets the next seat before node b.
func precedes(a Node, has int, b Node, hasB int) bool {
	// a.Weight/has > b.Weight/hasB, without division; without seats the quotient is infinite.
	if left, right := a.Weight*hasB, b.Weight*has; left != right {
		return left > right
	}
	if a.Weight != b.Weight { // neither has a seat
		return a.Weight > b.Weight
	}
	return a.Name < b.Name
}
