//go:build !unix

package node

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockData only makes sure that the data directory can be written: this system has no advisory locks we
// know of. The store under it has a lock of its own.
func lockData(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "carillon.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("node: data directory: %w", err)
	}
	return f, nil
}
