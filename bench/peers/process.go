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

// A workspace is the directory of a run and the processes that the run has started there. Each process has a folder NAME in it, which is
// its working directory, and the files NAME.pid and NAME.log. So a later run can tell which processes a killed run has left.
type workspace struct {
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
	signal syscall.Signal // asks it to end
	exited chan struct{}
	err    error // of Wait; set once exited is closed
}

// openWorkspace opens a workspace for a run. It fails if another run uses the directory, or has left processes there.
func openWorkspace(dir, carillon string) (*workspace, error) {
	s, err := lockWorkspace(dir)
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

// lockWorkspace makes the directory and locks it against other runs.
func lockWorkspace(dir string) (*workspace, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	// 0755, because PostgreSQL's user must be able to enter it.
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
	return &workspace{dir: dir, self: self, lock: lock}, nil
}

func (s *workspace) path(name string) string { return filepath.Join(s.dir, name) }

func (s *workspace) mkdir(name string) (string, error) {
	return s.path(name), os.MkdirAll(s.path(name), 0o700)
}

// start starts a process and waits until ready returns no error.
func (s *workspace) start(ctx context.Context, name string, cmd *exec.Cmd, signal syscall.Signal, ready func(context.Context) error) error {
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

// launch starts a command in a folder of the workspace. The kernel ends it if this process dies.
func (s *workspace) launch(name string, cmd *exec.Cmd, signal syscall.Signal) (*process, error) {
	dir, err := s.mkdir(name)
	if err != nil {
		return nil, err
	}
	cmd.Dir = dir
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // so that Ctrl-C reaches this process only, which then ends the others in order
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

// logTail is the end of a process's log.
func (s *workspace) logTail(name string) []byte {
	b, err := os.ReadFile(s.path(name + ".log"))
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-2000):]
}

// clear ends the processes, the latest first, and removes their files.
func (s *workspace) clear() (err error) {
	for len(s.running) > 0 {
		last := len(s.running) - 1
		p := s.running[last]
		s.running = s.running[:last]
		_ = p.cmd.Process.Signal(p.signal) // fails only if it has ended already
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

// close ends all processes and removes the directory.
func (s *workspace) close() error {
	err := errors.Join(s.clear(), os.RemoveAll(s.dir))
	return errors.Join(err, s.lock.Close())
}

// leftovers returns the processes that an earlier run has left. The kernel may have given the number in a .pid file to another program
// since; a process whose working directory is in the workspace was started by a run.
func (s *workspace) leftovers() (pids []int, err error) {
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

// holds tells whether a process runs in the workspace. A process that has ended has no working directory, even if nobody has waited for it.
func (s *workspace) holds(pid int) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && strings.HasPrefix(cwd, s.dir+"/")
}

// stopLeftovers ends the processes that a killed run has left, and removes its directory.
func stopLeftovers(dir string) (ended int, err error) {
	s, err := lockWorkspace(dir)
	if err != nil {
		return 0, err
	}
	defer s.lock.Close()
	pids, err := s.leftovers()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		// SIGINT ends each of them, and asks PostgreSQL for a fast shutdown.
		if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return ended, fmt.Errorf("end process %d: %w", pid, err)
		}
		for until := time.Now().Add(stopTimeout); s.holds(pid); {
			if time.Now().After(until) {
				return ended, fmt.Errorf("process %d did not end within %s", pid, stopTimeout)
			}
			time.Sleep(20 * time.Millisecond) // it is not a child of this process, so there is no Wait
		}
		ended++
	}
	return ended, os.RemoveAll(s.dir)
}

// freeAddress returns an address of the loopback interface with a free port.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
