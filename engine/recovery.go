package engine

import (
	"encoding/binary"

	"github.com/carillon-scheduler/carillon"
)

// A recovery says what becomes of fires that came due after a snapshot and before what was restored from it went on.
// Only the log knows when that is: a restored partition goes on with the claim of the first node that starts on it,
// and until then it is open. It holds until nothing of that time is left.
//
// A job that is put back by itself has one of its own.
type recovery struct {
	policy missedPolicy
	until  int64 // of fires due before, unix ms; 0: of all, until the partition goes on
}

// missedPolicy is a misfire policy in place of a job's own.
type missedPolicy uint8

const ownPolicy missedPolicy = 0 // none

func policyOf(m carillon.Misfire) missedPolicy { return missedPolicy(m) + 1 }

// or is the policy, or that of a job that has its own.
func (p missedPolicy) or(own carillon.Misfire) carillon.Misfire {
	if p == ownPolicy {
		return own
	}
	return carillon.Misfire(p - 1)
}

// String is the policy's word, and nothing where it is the job's own.
func (p missedPolicy) String() string {
	if p == ownPolicy {
		return ""
	}
	return p.or(0).String()
}

// Recover has a policy stand in for each job's own, for what comes due before a restored service goes on.
func (s *SavedState) Recover(missed carillon.Misfire) {
	s.machine.recovery = recovery{policy: policyOf(missed)}
}

// goOn is told of the claim that the partition goes on with.
func (r *recovery) goOn(now int64) {
	if r.policy != ownPolicy && r.until == 0 {
		r.until = now
	}
}

// over tells whether no fire can be left, when all that was due up to a time is decided.
func (r *recovery) over(to int64) bool { return r.until > 0 && to >= r.until }

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
