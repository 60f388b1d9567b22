package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Beat is what a member says about itself, every interval.
type Beat struct {
	Node
	Session  string `json:"session"`  // of this run of the process
	Version  string `json:"version"`  // of the binary, for people
	Standbys int    `json:"standbys"` // how many standbys it was configured to place for each partition
	Report
}

// Report is the part of a beat that the host supplies each time (Options.Report).
type Report struct {
	// Draining members stay live and get no partitions: what they serve goes to others when these have caught up.
	Draining bool `json:"draining,omitempty"`
	// Server is the name of the nats-server that the member is connected to. This package does not use it.
	Server string `json:"server,omitempty"`
	// Slow members have a slow network, which others cannot tell by that server, or had it a moment ago. This package does not use it.
	Slow bool `json:"slow,omitempty"`
	// ClockOffsetMS is the stream's clock minus the member's own, as the member measures it. This package does not use it.
	ClockOffsetMS int64 `json:"clock_offset_ms"`
	// Needs is the position from which the member would go on after a crash: the log above it must be kept. 0: all of it.
	Needs      uint64     `json:"needs"`
	Partitions []Progress `json:"partitions,omitempty"` // those that the member serves or follows
}

// Progress is how far a member is with a partition.
type Progress struct {
	Partition int    `json:"p"`
	Position  uint64 `json:"position"`        // the last sequence of the log that it has stored and applied
	Epoch     uint64 `json:"epoch,omitempty"` // of the claim by which it serves the partition; 0: it does not serve it
}

// node is the member as placement sees it: without a weight if it is draining.
func (b *Beat) node() Node {
	if b.Draining {
		return Node{Name: b.Name, Zone: b.Zone}
	}
	return b.Node
}

// Progress is how far the member says it is with a partition; false if it does not follow it.
func (b *Beat) Progress(partition int) (Progress, bool) {
	if partition < len(b.Partitions) && b.Partitions[partition].Partition == partition { // true for a member that follows all
		return b.Partitions[partition], true
	}
	i := slices.IndexFunc(b.Partitions, func(p Progress) bool { return p.Partition == partition })
	if i < 0 {
		return Progress{}, false
	}
	return b.Partitions[i], true
}

// sameAs compares only what makes a new view. Positions and offsets do not: they change with every beat.
func (b *Beat) sameAs(c *Beat) bool {
	return b.node() == c.node() && b.Session == c.Session && b.Version == c.Version && b.Standbys == c.Standbys &&
		b.Draining == c.Draining
}

// The keys of the bucket. A name is one token of a subject.
const (
	nodePrefix   = "node."
	placementKey = "placement"
)

func parseBeat(key string, data []byte) (Beat, error) {
	var b Beat
	if err := json.Unmarshal(data, &b); err != nil {
		return Beat{}, fmt.Errorf("cluster: key %s: %w", key, err)
	}
	if nodePrefix+b.Name != key || b.Session == "" {
		return Beat{}, fmt.Errorf("cluster: key %s holds the beat of node %q, session %q", key, b.Name, b.Session)
	}
	b.Weight = min(max(b.Weight, 0), MaxWeight)
	return b, nil
}

// storedPlacement is the placement as it is in the bucket, with the nodes and standbys that it was made for.
type storedPlacement struct {
	Nodes       []Node    `json:"nodes"` // in order of names, those with a weight
	Standbys    int       `json:"standbys"`
	Assignments Placement `json:"seats"`
}

// fits tells whether the placement was made for these arguments. It does not compare the assignments with what Place would make now: two
// versions of Carillon in one cluster may differ there, and would overwrite each other's placement for ever.
func (p *storedPlacement) fits(nodes []Node, partitions, standbys int) bool {
	return slices.Equal(p.Nodes, nodes) && p.Standbys == standbys && len(p.Assignments) == partitions
}

// wanted returns the nodes and the number of standbys that a placement for the live members should be made for. The number is what
// the first member by name was configured with, so that all members agree while it is being changed node by node.
func wanted(live []Beat) (nodes []Node, standbys int) {
	for _, b := range live {
		if n := b.node(); n.Weight > 0 {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	if len(live) > 0 {
		standbys = slices.MinFunc(live, func(a, b Beat) int { return strings.Compare(a.Name, b.Name) }).Standbys
	}
	return nodes, standbys
}
