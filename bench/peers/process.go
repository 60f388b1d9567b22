package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// A site is the directory of a run and the processes that it has started there. Each process has a folder of
// its own, in which it runs, and NAME.pid and NAME.log beside it: what is found alive in it later was ours.
type site struct {
	dir      string
	self     string // this binary
	carillon string // the binary of Carillon
	lock     *os.File
	running  []*process
}

// process is a server, or the worker.
type process struct {
	name   string
	cmd    *exec.Cmd
	signal syscall.Signal // what ends it properly
	exited chan struct{}
	err    error // its exit, once exited is closed
}

// openSite takes a directory for a run, with nothing of another run in it.
func openSite(dir, carillon string) (*site, error) {
	s, err := lockSite(dir)
	if err != nil {
		return nil, err
	}
	s.carillon = carillon
	left, err := s.leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s has processes of a run that was killed; make peers-stop ends them", s.dir)
	}
	if err != nil {
		s.lock.Close()
		return nil, err
	}
	return s, nil
}

// lockSite makes the directory and keeps every other run out of it.
func lockSite(dir string) (*site, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	// PostgreSQL's user has to pass through.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s is in use by another run, which stops what it started when it ends: %w", dir, err)
	}
	return &site{dir: dir, self: self, lock: lock}, nil
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) mkdir(name string) (string, error) {
	return s.path(name), os.MkdirAll(s.path(name), 0o700)
}

// start starts a process and waits until ready finds it so.
func (s *site) start(ctx context.Context, name string, cmd *exec.Cmd, signal syscall.Signal, ready func(context.Context) error) error {
	log, err := os.Create(s.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	p, err := s.launch(name, cmd, signal)
	if err != nil {
		return err
	}
	if ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if err = ready(ctx); err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended with %v; it said:\n%s", name, p.err, s.logTail(name))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; it said:\n%s", name, err, s.logTail(name))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// launch runs a command in a folder of the site. It ends with this process, however that ends.
func (s *site) launch(name string, cmd *exec.Cmd, signal syscall.Signal) (*process, error) {
	dir, err := s.mkdir(name)
	if err != nil {
		return nil, err
	}
	cmd.Dir = dir
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for this process, which then ends the others in order
	cmd.SysProcAttr.Pdeathsig = signal
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, signal: signal, exited: make(chan struct{})}
	s.running = append(s.running, p)
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, os.WriteFile(s.path(name+".pid"), strconv.AppendInt(nil, int64(cmd.Process.Pid), 10), 0o644)
}

// logTail is the end of what a process wrote.
func (s *site) logTail(name string) []byte {
	b, err := os.ReadFile(s.path(name + ".log"))
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-2000):]
}

// clear ends the processes, the latest first, and removes their folders.
func (s *site) clear() (err error) {
	for len(s.running) > 0 {
		last := len(s.running) - 1
		p := s.running[last]
		s.running = s.running[:last]
		_ = p.cmd.Process.Signal(p.signal) // gone already is as good
		select {
		case <-p.exited:
		case <-time.After(stopTimeout):
			_ = p.cmd.Process.Kill() // the same
			<-p.exited
			err = errors.Join(err, fmt.Errorf("%s did not end within %s", p.name, stopTimeout))
		}
		err = errors.Join(err, os.Remove(s.path(p.name+".pid")), os.RemoveAll(s.path(p.name)))
		if e := os.Remove(s.path(p.name + ".log")); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// close ends what runs and removes the directory.
func (s *site) close() error {
	err := errors.Join(s.clear(), os.RemoveAll(s.dir))
	return errors.Join(err, s.lock.Close())
}

// leftovers are processes of the site that an earlier run has not ended. A process number alone may be
// somebody else's by now; one that works in a folder of the site is not.
func (s *site) leftovers() (pids []int, err error) {
	files, err := filepath.Glob(s.path("*.pid"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if s.holds(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// holds tells whether a process is one of the site's. One that has ended works nowhere, waited for or not.
func (s *site) holds(pid int) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && strings.HasPrefix(cwd, s.dir+"/")
}

// stopLeftovers ends what a killed run left and removes its directory.
func stopLeftovers(dir string) (ended int, err error) {
	s, err := lockSite(dir)
	if err != nil {
		return 0, err
	}
	defer s.lock.Close()
	pids, err := s.leftovers()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		// SIGINT is what PostgreSQL takes for fast, and the others too end by it.
		if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return ended, fmt.Errorf("end process %d: %w", pid, err)
		}
		for until := time.Now().Add(stopTimeout); s.holds(pid); {
			if time.Now().After(until) {
				return ended, fmt.Errorf("process %d did not end within %s", pid, stopTimeout)
			}
			time.Sleep(20 * time.Millisecond) // no child of ours, so there is no Wait
		}
		ended++
	}
	return ended, os.RemoveAll(s.dir)
}

// freeAddress is a port of loopback that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
