package engine

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Rules are what this binary computes by.
func Rules() Claim { return Claim{Logic: Logic, TZData: schedule.TZVersion()} }

// takeClaim makes the claim's sequence the partition's epoch. A claim under older rules than those in
// force is void: its node must refuse to go on, and nobody follows it.
func (m *Machine) takeClaim(e *Entry) (uint64, error) {
	if m.claim.newer(e.Claim) {
		m.garbage("older_rules")
		return 0, nil
	}
	if e.Claim.newer(Rules()) {
		return 0, fmt.Errorf("%w: node %q claimed partition %d at sequence %d with logic %d and tzdata %s; this binary has logic %d and tzdata %s",
			ErrRules, e.Claim.Node, m.partition, e.Seq, e.Claim.Logic, e.Claim.TZData, Logic, schedule.TZVersion())
	}
	m.epoch, m.claim = e.Seq, e.Claim
	m.recovery.goOn(max(m.now, e.Time))
	m.mix(uint64(e.Kind), e.Seq)
	return m.epoch, nil
}
