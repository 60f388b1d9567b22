package bench

import (
	"os/exec"
	"syscall"
)

// endWithUs makes a command end when this process does, even by a kill -9: an engine or a client under load must not outlive its bench.
func endWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // Ctrl-C is for this process, which then ends the command in order
}
