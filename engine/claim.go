package engine

import (
	"encoding/json"
	"fmt"

	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Claim takes a partition: its sequence in the log becomes the partition's epoch. It also carries what
// must be the same for every reader: the versions of the rules, and the settings that outputs depend on.
type Claim struct {
	Node         string `json:"node"`
	Logic        int    `json:"logic"`         // Logic of the binary that claims
	TZData       string `json:"tzdata"`        // version of the zone rules, "2025c"
	RetentionMS  int64  `json:"retention_ms"`  // how long a completed job stays queryable
	CompletedMax int    `json:"completed_max"` // a completed job stays until so many others have completed after it
}

// Encode gives the claim record's body, JSON.
func (c Claim) Encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of strings and integers
	}
	return b
}

// DecodeClaim reads a claim record's body.
func DecodeClaim(b []byte) (Claim, error) {
	var c Claim
	if err := json.Unmarshal(b, &c); err != nil {
		return Claim{}, fmt.Errorf("%w: claim: %w", ErrRecord, err)
	}
	if c.Node == "" || len(c.Node) > 128 || c.Logic < 1 || c.TZData == "" || len(c.TZData) > 32 || c.RetentionMS < 0 || c.CompletedMax < 0 {
		return Claim{}, fmt.Errorf("%w: claim: %w", ErrRecord, errValue)
	}
	return c, nil
}

// newer tells whether c was made under later rules than o.
func (c Claim) newer(o Claim) bool {
	if c.Logic != o.Logic {
		return c.Logic > o.Logic
	}
	return c.TZData > o.TZData
}

func (c Claim) sameRules(o Claim) bool { return c.Logic == o.Logic && c.TZData == o.TZData }

// Rules are the versions of the rules that this binary computes by.
func Rules() Claim { return Claim{Logic: Logic, TZData: schedule.TZVersion()} }

// applyClaim makes the claim's sequence the partition's epoch. A claim under older rules than those in
// force has no effect: its node must refuse to go on, and no reader follows it.
func (m *Machine) applyClaim(e *Entry) (uint64, error) {
	if m.claim.newer(e.Claim) {
		m.garbage("older_rules")
		return 0, nil
	}
	if e.Claim.newer(Rules()) {
		return 0, m.newerRules(e.Claim, e.Seq)
	}
	m.epoch, m.claim = e.Seq, e.Claim
	m.recovery.claimed(max(m.now, e.Time))
	m.mix(uint64(e.Kind), e.Seq)
	return m.epoch, nil
}

func (m *Machine) newerRules(c Claim, seq uint64) error {
	rules := Rules()
	return fmt.Errorf("%w: node %q claimed partition %d at sequence %d with logic %d and tzdata %s; this binary has logic %d and tzdata %s",
		ErrRules, c.Node, m.partition, seq, c.Logic, c.TZData, rules.Logic, rules.TZData)
}
