package engine

import (
	"encoding/binary"

	"github.com/carillon-scheduler/carillon"
)

// A recovery says what becomes of fires that came due after a snapshot was taken and before the partition restored from it went on.
// When it goes on is known only from the log: with the claim of the first node that starts on it. Until then the end of that time is
// open. The recovery stays in the state until no fire of that time is left.
//
// A job that is restored by itself, into a running service, has a recovery of its own.
type recovery struct {
	policy missedPolicy
	until  int64 // it is for fires due before this, unix ms; 0: the partition has not gone on yet
}

// missedPolicy is a misfire policy in place of a job's own.
type missedPolicy uint8

const ownPolicy missedPolicy = 0 // the job's own holds

func policyOf(m carillon.Misfire) missedPolicy { return missedPolicy(m) + 1 }

// or is the misfire policy that holds for a job with this one of its own.
func (p missedPolicy) or(own carillon.Misfire) carillon.Misfire {
	if p == ownPolicy {
		return own
	}
	return carillon.Misfire(p - 1)
}

// String is the policy's word; "" for ownPolicy.
func (p missedPolicy) String() string {
	if p == ownPolicy {
		return ""
	}
	return p.or(0).String()
}

// OverrideMisfire sets a misfire policy in place of each job's own, for fires due before the restored service goes on.
func (s *SavedState) OverrideMisfire(missed carillon.Misfire) {
	s.machine.recovery = recovery{policy: policyOf(missed)}
}

// claimed notes that a claim was taken. With the first one after a restore the partition goes on.
func (r *recovery) claimed(now int64) {
	if r.policy != ownPolicy && r.until == 0 {
		r.until = now
	}
}

// isOver tells whether no fire of a recovery can be left once all fires due up to a time are decided.
func (r *recovery) isOver(to int64) bool { return r.until > 0 && to >= r.until }

func (r *recovery) append(b []byte) []byte {
	return binary.AppendVarint(append(b, byte(r.policy)), r.until)
}

func (d *decoder) recovery() recovery { return recovery{d.missedPolicy(), d.varint()} }

func (d *decoder) missedPolicy() missedPolicy {
	p := missedPolicy(d.byte())
	if p > policyOf(carillon.Skip) {
		d.fail(errValue)
	}
	return p
}
