package cluster

// shares says how many of so many partitions each node gets, in the order of nodes: seats given one after the
// other, each to the node whose weight ÷ seats so far is greatest (Adams's method of apportionment; a node without
// a seat comes first, the heavier and then the one whose name is less wins a tie).
//
// Why not round each share up or down: a divisor method gives the same seats in the same order whoever else is
// there, so one node more takes seats from others and moves none between them, for any weights. Of the divisor
// methods Adams's is the one that never gives more than the share rounded up.
func shares(nodes []Node, partitions int) []int {
	seats := make([]int, len(nodes))
	award(nodes, seats, partitions, func(int) bool { return true })
	return seats
}

// award gives so many seats more to the nodes that may have them, one of which has a weight.
func award(nodes []Node, seats []int, count int, may func(i int) bool) {
	for range count {
		best := -1
		for i, n := range nodes {
			if n.Weight > 0 && may(i) && (best < 0 || before(n, seats[i], nodes[best], seats[best])) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		seats[best]++
	}
}

// before tells whether a with its seats is due the next one before b with its own.
func before(a Node, has int, b Node, hasB int) bool {
	// a.Weight/has > b.Weight/hasB, without division; no seats make it infinite.
	if left, right := a.Weight*hasB, b.Weight*has; left != right {
		return left > right
	}
	if a.Weight != b.Weight { // neither has a seat
		return a.Weight > b.Weight
	}
	return a.Name < b.Name
}
