package streams

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A block that cannot be synced is named in the error.
func TestFileSyncNamesTheBlock(t *testing.T) {
	store := t.TempDir()
	block := filepath.Join(store, "$G", "streams", "CARILLON_OUT_0", "msgs", "1.blk")
	if err := os.MkdirAll(filepath.Dir(block), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.DevNull, block); err != nil { // fdatasync fails on it
		t.Fatal(err)
	}
	s, err := NewFileSync(store, "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sync(); err == nil || !strings.Contains(err.Error(), block) {
		t.Errorf("a block that cannot be synced: %v", err)
	}
}

// A block that is new is lost with a loss of power while its name is not on disk: its directory is synced, too, and no other time.
func TestFileSyncSyncsTheDirectory(t *testing.T) {
	store := t.TempDir()
	block := filepath.Join(store, "$G", "streams", "CARILLON_OUT_0", "msgs", "1.blk")
	if err := os.MkdirAll(filepath.Dir(block), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(block, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	s, err := NewFileSync(store, "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	withoutFsync(t, func() {
		if _, err := s.Sync(); !errors.Is(err, ErrNotSynced) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), filepath.Dir(block)+":") {
			t.Errorf("its directory cannot be synced: %v", err)
		}
	})
	if blocks, err := s.Sync(); err != nil || blocks != 1 {
		t.Fatalf("synced %d blocks, %v", blocks, err)
	}
	write("one and two")
	withoutFsync(t, func() {
		if blocks, err := s.Sync(); err != nil || blocks != 1 {
			t.Errorf("of a block that was there %d are synced, %v", blocks, err)
		}
	})
}

// withoutFsync calls do on a thread on which every fsync fails with EIO, and fdatasync, by which blocks are synced, does not.
func withoutFsync(t *testing.T, do func()) {
	t.Helper()
	refuse := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(refuse)), Filter: &refuse[0]}
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			if _, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); e != 0 {
				err = e
			}
		}
		if err == nil {
			do()
		}
		refused <- err
	}()
	if err := <-refused; err != nil {
		t.Fatal(err)
	}
}
