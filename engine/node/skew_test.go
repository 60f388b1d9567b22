package node_test

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// wrongClock is a machine's clock that is wrong. turn makes it wrong by as much the other way.
type wrongClock struct{ ahead atomic.Int64 }

func (c *wrongClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *wrongClock) turn() { c.ahead.Store(-c.ahead.Load()) }

// command builds the program, and returns a function that runs it.
func command(t testing.TB) func(args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "carillon")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/carillon").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(args ...string) string {
		t.Helper()
		out, err := exec.Command(bin, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("carillon %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

// Nodes on machines whose clocks are wrong, by 2 s and by an hour, serve beside one whose clock is right, take over from
// it, and have their clocks set meanwhile, from too fast to too slow. Nothing is lost, repeated or early; each says how
// wrong its clock is.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	run := command(t)
	e := startExternal(t)
	f := newFleet(t, e.url, 4)
	wrong := map[string]time.Duration{"a": 0, "b": 2 * time.Second, "c": time.Hour}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		f.settings[name] = settings{
			Data: t.TempDir(), Name: name, NATS: e.url, Partitions: f.partitions, CheckpointEvery: 2 * time.Second, Wrong: wrong[name],
		}
		f.start(name)
	}
	c := carillon.Connect(dial(t, e.url), carillon.WithTimeout(10*time.Second))
	f.shared(c, names...)
	told := func() {
		for _, name := range names {
			near := func(ms float64) bool { return math.Abs(ms+float64(wrong[name].Milliseconds())) < 40 }
			eventually(t, "the offset of "+name+" is known", func() bool {
				nodes := status(t, c).Nodes
				i := slices.IndexFunc(nodes, func(n carillon.NodeStatus) bool { return n.Node == name })
				return i >= 0 && near(float64(nodes[i].ClockOffset)) && near(1000*metric(t, f.nodes[name].HTTP, "carillon_clock_offset_seconds"))
			})
		}
		warnings := func() string { return run("-s", e.url, "status") }
		for name, by := range wrong {
			warning := fmt.Sprintf("warning: the clock of %s is %.1f s off that of the streams", name, by.Abs().Seconds())
			if by != 0 {
				eventually(t, warning, func() bool { return strings.Contains(warnings(), warning) })
			} else if strings.Contains(warnings(), "the clock of "+name) {
				t.Errorf("there is a warning of %s: %s", name, warnings())
			}
		}
	}
	l := startLoad(t, e.url, "w", true)
	told()
	for _, name := range []string{"b", "c"} {
		f.nodes[name].signal(t, syscall.SIGUSR1)
		wrong[name] = -wrong[name]
	}
	told()
	down := span{from: now()}
	f.nodes["a"].kill()
	f.shared(c, "b", "c")
	down.to = now()
	f.start("a")
	f.shared(c, names...)
	l.verify(f.partitions, down)
	f.terminate()
}

// If a clock was set back, /readyz says so for as long as partitions are ahead of it: nothing fires there meanwhile.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: 1}
	p := mustSpawn(t, s)
	fires(t, client(t, p.NATS), "job")
	p.terminate(t)
	s.Wrong = -time.Hour
	p = mustSpawn(t, s)
	eventually(t, "/readyz tells of the partition that is ahead", func() bool {
		ready, why := readyz(t, p.HTTP)
		return !ready && strings.Contains(why, "partition 0 is at ") && strings.Contains(why, " ahead of the clock")
	})
	p.signal(t, syscall.SIGUSR1) // as if the time had passed
	eventually(t, "/readyz is green", func() bool { ready, _ := readyz(t, p.HTTP); return ready })
	eventually(t, "the log tells of the jump", func() bool { return strings.Contains(p.log.String(), "the clock jumped ahead") })
}
