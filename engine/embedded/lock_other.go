//go:build !unix

package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockDir only makes sure that dir can be written: this system has no advisory locks we know of.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: Dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "jetstream.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("embedded: Dir: %w", err)
	}
	return f, nil
}
