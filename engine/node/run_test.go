package node

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// The servers at which runs could not reach NATS are tried last, the last of them last, until a run ends for another reason. A node that
// was left behind goes on to avoid them.
func TestServersTriedLast(t *testing.T) {
	unreached := fmt.Errorf("%w: no leader", errUnreachable)
	r := &runs{o: Options{NATS: "nats://a,nats://b"}}
	for i, c := range []struct {
		err  error
		at   string
		want []string
	}{
		{unreached, "", nil},
		{unreached, "nats://a", []string{"nats://a"}},
		{unreached, "nats://b", []string{"nats://a", "nats://b"}},
		{unreached, "", []string{"nats://a", "nats://b"}},
		{unreached, "nats://a", []string{"nats://b", "nats://a"}},
		{&leftBehindError{}, "nats://b", []string{"nats://b", "nats://a"}},
		{errDisk, "nats://b", nil},
		{errors.Join(unreached, errNoFiles), "nats://b", []string{"nats://b"}},
	} {
		r.noteServer(c.err, c.at)
		if got := r.o.servers().Last; !slices.Equal(got, c.want) {
			t.Errorf("after end %d these are last: %q", i, got)
		}
	}
}
