//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// setGroup has a command in a process group of its own. Ctrl-C on a terminal is for all of one group: it is the worker's, which
// then lets the command end. Where it is cancelled, all that it has started ends with it.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
