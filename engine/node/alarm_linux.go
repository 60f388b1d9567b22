package node

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes a goroutine at a time, or when it is rung. Go's own timers sleep in whole milliseconds of
// epoll_wait when the process is idle (p50 0.5 ms late here); a timerfd is an event like any other to
// the network poller, and comes about 0.06 ms late.
type alarm struct {
	f    *os.File
	fd   int
	rang chan struct{}
}

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return alarm{}, fmt.Errorf("node: timer: %w", err)
	}
	a := alarm{f: os.NewFile(uintptr(fd), "timerfd"), fd: fd, rang: make(chan struct{}, 1)}
	go func() {
		var expirations [8]byte
		for {
			if _, err := a.f.Read(expirations[:]); err != nil {
				return // closed
			}
			a.ring()
		}
	}()
	return a, nil
}

// set makes the alarm ring after d, instead of when it was to ring before.
func (a alarm) set(d time.Duration) error {
	d = max(d, 1)
	return unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

// ring wakes the waiter now.
func (a alarm) ring() { ring(a.rang) }

func (a alarm) close() { a.f.Close() }
