package alarm

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timer is a timerfd.
type timer struct {
	f  *os.File
	fd int
}

func newTimer(ring func()) (timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return timer{}, err
	}
	t := timer{f: os.NewFile(uintptr(fd), "timerfd"), fd: fd}
	go func() {
		var expirations [8]byte
		for {
			if _, err := t.f.Read(expirations[:]); err != nil {
				return // closed
			}
			ring()
		}
	}()
	return t, nil
}

func (t timer) set(d time.Duration) error {
	return unix.TimerfdSettime(t.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

func (t timer) close() { t.f.Close() }
