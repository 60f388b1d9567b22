//go:build !linux && !darwin

package embedded

// diskBytes is not known on this system.
func diskBytes(string) int64 { return 0 }

// openFiles is not known on this system.
func openFiles() uint64 { return 0 }
