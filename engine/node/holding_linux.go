package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadUse is what the thread that asks has had of the machine.
func threadUse() use {
	var ran unix.Timespec
	var usage unix.Rusage
	// Neither fails on a kernel that Go runs on. The usage has times, too, but of the last time that the scheduler looked.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ran)
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &usage)
	return use{ran: time.Duration(ran.Nano()), waited: int64(usage.Nvcsw)}
}
