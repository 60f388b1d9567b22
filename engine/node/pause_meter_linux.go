package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadUsage returns what the calling thread has used so far.
func threadUsage() usage {
	var ran unix.Timespec
	var rusage unix.Rusage
	// Neither call fails on a kernel that Go runs on. Getrusage has CPU times, too, but only as of the last time that the scheduler looked.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ran)
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &rusage)
	return usage{ran: time.Duration(ran.Nano()), waited: int64(rusage.Nvcsw)}
}
