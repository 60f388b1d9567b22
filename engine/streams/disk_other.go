//go:build !linux && !darwin

package streams

import "errors"

// Syncfs is not known on this system.
func Syncfs(string) error { return errors.ErrUnsupported }

// FreeBytes is not known on this system.
func FreeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }

// SameDisk is not known on this system.
func SameDisk(string, string) (bool, error) { return false, errors.ErrUnsupported }
