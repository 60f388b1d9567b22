package engine

import "testing"

// What was stored for good while a checkpoint read the outbox is let go of, also where nothing is put out any more.
func TestOutboxLetsGo(t *testing.T) {
	const made = 20 * sweepSlack
	for _, pinnedUpTo := range []uint64{made, made - 1, made / 2} {
		var b outbox
		for range made {
			b.add(Output{Body: "body"})
		}
		b.pinned = true
		b.trim(Acked{Output: made / 4})
		b.trim(Acked{Output: pinnedUpTo})
		if got := b.outputs[0].Body; got == "" {
			t.Fatal("what a checkpoint reads is cleared")
		}
		b.unpin()
		if held, ok := b.after(pinnedUpTo); !ok || len(held) != int(made-pinnedUpTo) {
			t.Errorf("%d outputs after %d, %v", len(held), pinnedUpTo, ok)
		}
		b.trim(Acked{Output: made})
		for i, o := range b.outputs[:cap(b.outputs)] {
			if o.Body != "" {
				t.Errorf("pinned up to %d of %d: all are stored, and output %d is still there", pinnedUpTo, made, i+1)
				break
			}
		}
		if b.add(Output{}).Number != made+1 || b.bytes != (&Output{}).size() {
			t.Errorf("the next output is of %d bytes", b.bytes)
		}
	}
}
