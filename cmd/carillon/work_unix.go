//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// setGroup puts a command into a process group of its own. Ctrl-C on a terminal reaches all processes of one group: so it reaches only
// the worker, which then lets the command end. If the command is cancelled, everything in its group is ended.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
