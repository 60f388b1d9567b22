package bench

import (
	"os/exec"
	"syscall"
)

// endWithUs has a command end when this process does, be it with a kill -9: an engine under load is not to outlive its bench.
func endWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // Ctrl-C is for this process, which then ends the engine in order
}
