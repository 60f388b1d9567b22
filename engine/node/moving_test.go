package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
)

// diskFault is what happens to a node's process at one of its next writes to the job table.
type diskFault struct {
	After int64 // writes; 0: nothing happens
	Full  bool  // the disk is full, for a while; else the process is killed
}

// fullFor is how long a disk that fills up stays full.
const fullFor = 700 * time.Millisecond

// standingDisk returns a file system that stands still from a SIGUSR1 to the next: no operation returns then, nor does the question
// how much room it has.
func standingDisk() vfs.FS {
	var still sync.RWMutex
	turn := make(chan os.Signal, 1)
	signal.Notify(turn, syscall.SIGUSR1)
	go func() {
		for {
			<-turn
			still.Lock()
			<-turn
			still.Unlock()
		}
	}()
	wait := func() {
		still.RLock()
		defer still.RUnlock()
	}
	node.SetFreeBytes(func(dir string) (uint64, error) {
		wait()
		return streams.FreeBytes(dir)
	})
	return faultfs.Wrap(vfs.Default, func(errorfs.Op) error {
		wait()
		return nil
	})
}

// faultyDisk returns a file system with the fault that a file describes. It reads the file now and at each SIGUSR2.
func faultyDisk(file string) vfs.FS {
	var left atomic.Int64
	var full atomic.Bool
	var fullUntil atomic.Int64 // unix ns
	read := func() {
		var f diskFault
		if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &f) != nil {
			panic("not a fault: " + string(data))
		}
		full.Store(f.Full)
		left.Store(f.After)
		fmt.Fprintf(os.Stderr, "ahead: %+v\n", f)
	}
	read()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGUSR2)
	go func() {
		for range again {
			read()
		}
	}()
	return faultfs.Wrap(vfs.Default, func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		if left.Load() > 0 && left.Add(-1) == 0 {
			fmt.Fprintln(os.Stderr, "fault at", op.Kind, filepath.Base(op.Path))
			if !full.Load() {
				if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
					panic(err)
				}
				select {} // nothing comes after the write
			}
			fullUntil.Store(time.Now().Add(fullFor).UnixNano())
		}
		if time.Now().UnixNano() < fullUntil.Load() {
			return syscall.ENOSPC
		}
		return nil
	})
}

// setFault has a node meet a fault at one of its next writes, or, if that is diskFault{}, none any more. A node that is not up reads it
// when it starts.
func (f *fleet) setFault(name string, fault diskFault) {
	f.t.Helper()
	file := f.settings[name].Fault
	data, err := json.Marshal(fault)
	switch {
	case err != nil:
	case fault == diskFault{}:
		err = os.Remove(file)
	default:
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	if p := f.nodes[name]; p != nil {
		if err := p.cmd.Process.Signal(syscall.SIGUSR2); err != nil && !errors.Is(err, os.ErrProcessDone) {
			f.t.Fatal(err)
		}
	}
}

// faults are the writes at which faults have struck a process.
func (p *process) faults() (writes []string) {
	for line := range strings.Lines(p.log.String()) {
		if _, write, found := strings.Cut(line, "fault at "); found {
			writes = append(writes, strings.TrimSpace(write))
		}
	}
	return writes
}

// moveUnder has c come or leave, so that partitions are taken and given up, while a fault is ahead of victim. It returns the write at which
// the fault struck, or "" if none was left when all was where it belongs.
func (f *fleet) moveUnder(nc *nats.Conn, placed *placements, comes bool, victim string, fault diskFault) (write string) {
	f.t.Helper()
	before := 0
	if victim == "c" { // it is not up yet
		f.nodes["c"] = nil
	} else {
		before = len(f.nodes[victim].faults())
	}
	f.setFault(victim, fault)
	among := []string{"a", "b"}
	if comes {
		among = append(among, "c")
		p, err := spawn(f.t, f.settings["c"])
		if f.nodes["c"] = p; err != nil && len(p.faults()) == 0 {
			f.t.Fatal(err)
		}
	} else {
		f.nodes["c"].terminate(f.t)
	}
	strikes := func() bool {
		faults := f.nodes[victim].faults()
		if len(faults) == before {
			return false
		}
		write = faults[len(faults)-1]
		return true
	}
	eventually(f.t, "a fault strikes, or all is where it belongs", func() bool { return strikes() || f.followedAsPlaced(nc, placed, among) })
	f.setFault(victim, diskFault{})
	ahead := func(fault diskFault) int {
		return strings.LastIndex(f.nodes[victim].log.String(), fmt.Sprintf("ahead: %+v", fault))
	}
	eventually(f.t, "nothing is ahead", func() bool { return strikes() || ahead(diskFault{}) > ahead(fault) })
	strikes()
	return write
}

// Nodes are killed, and their disks fill up, at any write to the job table while partitions are taken and given up. Nothing is
// missing, duplicated or early, and in the end all partitions are where they belong.
func TestMoving(t *testing.T) {
	t.Parallel()
	rounds := envInt(t, "CARILLON_MOVES", 4)
	seed := uint64(envInt(t, "CARILLON_SEED", rand.IntN(1_000_000)))
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	e := startExternal(t)
	f := newFleet(t, e.url, 8)
	for _, name := range []string{"a", "b", "c"} {
		dir := t.TempDir()
		f.settings[name] = settings{
			Data: filepath.Join(dir, "data"), Name: name, NATS: e.url, Partitions: f.partitions, CheckpointEvery: time.Second,
			Follow: node.FollowPlaced, Linger: 200 * time.Millisecond, Fault: filepath.Join(dir, "fault"),
		}
	}
	nc := dial(t, e.url)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	f.startAll(c, "a", "b")
	placed := watchPlacements(t, nc)
	f.placed(c, nc, placed, "a", "b")
	preload(t, e.url, 3000)
	l := startLoad(t, e.url, "m", true)
	l.far = 3000
	faults := 0
	for round := 0; round < rounds || faults == 0; round++ {
		comes := round%2 == 0
		among, victims := []string{"a", "b"}, []string{"a", "b"}
		if comes {
			among, victims = []string{"a", "b", "c"}, []string{"a", "b", "c", "c"}
		}
		victim := victims[rng.IntN(len(victims))]
		fault := diskFault{After: int64(math.Exp(rng.Float64() * math.Log(600))), Full: rng.IntN(2) == 0}
		write := f.moveUnder(nc, placed, comes, victim, fault)
		t.Logf("round %d: c comes: %t; %s, %+v: strikes at %q", round, comes, victim, fault, write)
		if write != "" {
			faults++
			if !fault.Full {
				f.nodes[victim].kill()
				f.start(victim)
			}
		}
		f.placed(c, nc, placed, among...)
	}
	l.verify(f.partitions)
	t.Logf("%d faults in %d rounds", faults, rounds)
	for _, name := range []string{"a", "b"} {
		f.nodes[name].terminate(t)
	}
}
