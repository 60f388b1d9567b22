package streams

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFileSyncSeesEachChangeOnce(t *testing.T) {
	store := t.TempDir()
	dir := filepath.Join(store, "$G", "streams", "CARILLON_OUT_0", "msgs")
	other := filepath.Join(store, "$G", "streams", "ORDERS", "msgs")
	for _, d := range []string{dir, other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "1.blk"), []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := NewFileSync(store, "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	sync := func(want int) stamp {
		t.Helper()
		blocks, err := s.Sync()
		if err != nil || blocks != want {
			t.Fatalf("synced %d blocks, %v, want %d", blocks, err, want)
		}
		return s.synced[filepath.Join(dir, "1.blk")]
	}
	if got := sync(1); got.size != 3 {
		t.Fatalf("synced %+v, want the 3 bytes", got)
	}
	for range 2 {
		sync(0)
	}
	if err := os.WriteFile(filepath.Join(dir, "1.blk"), []byte("one and two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := sync(1); got.size != 11 {
		t.Fatalf("synced %+v, want the 11 bytes", got)
	}
	if len(s.synced) != 1 {
		t.Fatalf("synced %v, want only the output stream's block", s.synced)
	}
	// A block that retention removes between listing and fsync is no error.
	if err := os.Remove(filepath.Join(dir, "1.blk")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone", filepath.Join(dir, "2.blk")); err != nil { // it is listed, but cannot be opened
		t.Fatal(err)
	}
	sync(0)
	// Nor is a stream that is deleted.
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	sync(0)
	// One whose blocks cannot be listed is.
	if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sync(); !errors.Is(err, ErrNotSynced) {
		t.Errorf("its directory cannot be read: %v", err)
	}
}

// A stream that is not where it is expected does not pass for synced.
func TestFileSyncFindsTheStream(t *testing.T) {
	store := filepath.Join(t.TempDir(), "data[1]") // must not be read as a glob pattern
	if err := os.MkdirAll(filepath.Join(store, "jetstream", "$G", "streams", "CARILLON_OUT_10", "msgs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][2]string{{store, "CARILLON_OUT_10"}, {filepath.Join(store, "jetstream"), "CARILLON_OUT_1"}, {filepath.Join(store, "none"), "CARILLON_OUT_10"}} {
		if _, err := NewFileSync(wrong[0], wrong[1]); err == nil {
			t.Errorf("no stream %s is under %s, and that is no error", wrong[1], wrong[0])
		}
	}
	if _, err := NewFileSync(filepath.Join(store, "jetstream"), "CARILLON_OUT_10"); err != nil {
		t.Error(err)
	}
}
