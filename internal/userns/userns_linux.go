// Package userns runs tests that need root for users who are not root.
package userns

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inside is the environment variable by which a test knows that it runs in a user namespace.
const inside = "CARILLON_TEST_NAMESPACE"

// Rerun is for a test that got err. If err says that something is not permitted, Rerun runs the calling test again, as root of a
// user namespace, in another process, and passes its outcome on. It returns whether it did: then the caller has nothing left to do.
func Rerun(t *testing.T, err error) bool {
	t.Helper()
	if !errors.Is(err, syscall.EPERM) || os.Getenv(inside) != "" {
		return false
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Fatalf("in a user namespace: %v\n%s", err, out)
	case err != nil:
		t.Skipf("NOT TESTED: this takes root, or a user namespace: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("NOT TESTED: not in a user namespace, either:\n%s", out)
	}
	t.Logf("in a user namespace:\n%s", out)
	return true
}
