package engine

import "testing"

// An owner that has nowhere to put outputs yet ticks only to keep the partition going: at once where nobody has for a
// while, and not where the owner before did a moment ago.
func TestOwnerWithoutRoom(t *testing.T) {
	f := newFeed(t)
	f.put("j", `{"schedule":"@every 10ms"}`)
	f.tick(100)
	f.now += 20
	f.tick(100)
	ticked := f.now
	f.apply(&Entry{Kind: KindClaim, Claim: f.m.claim}) // somebody takes over
	o := Owner{Epoch: f.seq}
	for _, c := range []struct {
		after int64
		room  int
		ticks bool
	}{{30, 0, false}, {keepAlive - 1, 0, false}, {30, 1, true}, {keepAlive, 0, true}} {
		now := ticked + c.after
		wake := o.Wake(f.m, now, 0, c.room, Acked{})
		_, ticks := (&Owner{Epoch: o.Epoch}).Tick(f.m, now, 0, c.room, Acked{})
		if ticks != c.ticks || (wake <= now) != c.ticks {
			t.Errorf("%d ms after the last tick, with room for %d: ticks %t, to be asked in %d ms; want %t", c.after, c.room, ticks, wake-now, c.ticks)
		}
	}
	for _, epoch := range []uint64{0, f.seq - 1, f.seq + 1} {
		if wake := (&Owner{Epoch: epoch}).Wake(f.m, f.now+keepAlive, 0, 1, Acked{}); wake != none {
			t.Errorf("an owner of epoch %d is to be asked at %d", epoch, wake)
		}
	}
}
