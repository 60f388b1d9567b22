package bench

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// On a disk without room for an engine a run fails at once. Otherwise the engine would wait for room, and the run for the engine.
func TestTooLittleDisk(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 64)
	if !ok {
		return
	}
	c := smallLateness(t)
	c.Service.Data = dir
	_, err := RunLateness(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "64 MiB are free in "+dir) {
		t.Errorf("the error is %v", err)
	}
	nothingIn(t, dir)
}

// An engine ends with the bench that started it, even if that is killed with -9.
func TestEngineEndsWithBench(t *testing.T) {
	t.Parallel()
	bench := exec.Command(os.Args[0], "bench", t.TempDir())
	bench.Stderr = os.Stderr
	out, err := bench.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bench.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := bench.Process.Kill(); err != nil {
		t.Error(err)
	}
	var killed *exec.ExitError
	if ended := bench.Wait(); !errors.As(ended, &killed) {
		t.Errorf("the bench ended with %v", ended)
	}
	if err != nil {
		t.Fatal(err)
	}
	engine := "/proc/" + strings.TrimSpace(line) + "/cmdline"
	eventually(t, engine+" is empty", func() bool {
		command, err := os.ReadFile(engine)
		return errors.Is(err, fs.ErrNotExist) || len(command) == 0 // empty for a process that has ended and that nobody has waited for
	})
}

// Ctrl-C is for the bench alone: the processes that it talks to are not in its group, or they would say "interrupted", too. They end with the
// run, whatever it waits for.
func TestProcessIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := startProcess(ctx, []string{"/bin/sh", "-c", "exec cat"}, "url")
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if group, err := syscall.Getpgid(p.cmd.Process.Pid); err != nil || group == syscall.Getpgrp() {
		t.Errorf("it is in the group %d, ours, %v", group, err)
	}
	if err := p.send("order"); err != nil {
		t.Fatal(err)
	}
	var answer string
	if err := p.receive(&answer); err != nil || answer != "order" {
		t.Errorf("%q, %v", answer, err)
	}
	cancel()
	if err := p.receive(&answer); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", answer, err)
	}
}
