package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// The disk: how much room is left on it, what follows from that for new jobs and for ticks, and whether it stands still.

// freeBytes is how many bytes are free on a directory's disk.
var freeBytes = streams.FreeBytes

// room is how many bytes are free on the disk of the data directory, or on that of one of the stores in it if that has less.
func (n *Node) room() (free uint64, err error) {
	if free, err = freeBytes(n.o.Data); err != nil {
		return 0, err
	}
	dirs := []string{filepath.Join(n.o.Data, "log"), filepath.Join(n.o.Data, "jobs"), n.o.natsDir()}
	if n.server != nil {
		dirs = append(dirs, n.server.JetStreamDir()) // its configuration file may have it elsewhere
	}
	for _, dir := range dirs {
		here, err := freeBytes(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		free = min(free, here)
	}
	return free, nil
}

// watchDisk looks how much room is left, whether the data directory is still in place, and whether the embedded server could write its
// streams: while no tick is due, nothing else would find out. It has a goroutine of its own, because a disk that does not answer may
// block it, and watch and the beats must go on.
func (n *Node) watchDisk(context.Context) error {
	if err := checkDataDir(n.dataDir); err != nil {
		return err
	}
	free, err := n.room()
	if err != nil {
		return err
	}
	if n.server != nil {
		errs := n.server.StreamErrors()
		if why, is := errs[n.streams.Log.Name()]; is {
			return fmt.Errorf("%w: nats-server: %s", errDisk, why)
		}
		n.failedStreams.update(errs)
	}
	if refused := free < n.o.FreeForJobs; n.refuseJobs.Swap(refused) != refused {
		n.logRoom(refused, "for new jobs", free, n.o.FreeForJobs)
	}
	n.appendDiskState()
	if held := free < n.o.FreeForTicks; n.holdTicks.Swap(held) != held {
		n.logRoom(held, "to fire", free, n.o.FreeForTicks)
		n.alarm.Wake()
	}
	return nil
}

// logRoom logs that the disk has become short, or has room again.
func (n *Node) logRoom(short bool, what string, free, needed uint64) {
	said := "enough disk space " + what + " again"
	if short {
		said = "too little disk space " + what
	}
	n.log.Warn(said, "free_bytes", free, "needed_bytes", needed)
}

// appendDiskState makes every reader refuse new jobs, or take them again: each partition that this node owns gets a record, if its machine
// does not know the disk's state yet. The record is sent again with each call until it has come back.
func (n *Node) appendDiskState() {
	low := n.refuseJobs.Load()
	for _, p := range n.partitions {
		p.mu.Lock()
		st, epoch := p.machine.Stats(), p.owner.Epoch
		p.mu.Unlock()
		if epoch != 0 && epoch == st.Epoch && st.DiskLow != low {
			// An error needs no care: while the record does not come back, it is sent again.
			_ = n.streams.Log.PublishAsync(n.layout.LogSubject(p.number, "disk"), nil, engine.Disk{Epoch: epoch, Low: low}.Encode(), nil)
		}
	}
}

// diskStalledAfter is how long an append to the local log may take before others answer in this node's place: far longer than it takes on a
// busy disk, and well below the time after which a client asks again.
const diskStalledAfter = 500 * time.Millisecond

// diskStalled tells whether the disk stands still, so that this node applies nothing and so answers nothing.
func (n *Node) diskStalled() bool {
	began := n.appending.Load()
	return began != 0 && n.clock.running()-time.Duration(began) > diskStalledAfter
}
