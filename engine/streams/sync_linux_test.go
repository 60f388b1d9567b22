package streams

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
