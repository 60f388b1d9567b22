package streams

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFileSyncSeesEachChangeOnce(t *testing.T) {
	store := t.TempDir()
	dir := filepath.Join(store, "jetstream", "$G", "streams", "CARILLON_OUT_0", "msgs")
	other := filepath.Join(store, "jetstream", "$G", "streams", "ORDERS", "msgs")
	for _, d := range []string{dir, other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "1.blk"), []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := NewFileSync(store, "CARILLON_OUT_")
	sync := func() stamp {
		t.Helper()
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return s.synced[filepath.Join(dir, "1.blk")]
	}
	if got := sync(); got.size != 3 {
		t.Fatalf("synced %+v, want the 3 bytes", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "1.blk"), []byte("one and two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := sync(); got.size != 11 {
		t.Fatalf("synced %+v, want the 11 bytes", got)
	}
	if len(s.synced) != 1 {
		t.Fatalf("synced %v, want only the output stream's block", s.synced)
	}
	// A block that retention takes between listing and fsync is no error.
	if err := os.Remove(filepath.Join(dir, "1.blk")); err != nil {
		t.Fatal(err)
	}
	sync()
}
