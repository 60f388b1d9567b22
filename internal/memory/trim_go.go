//go:build !cgo || !linux

package memory

// trimC does nothing: without cgo Pebble's memory is Go's, and elsewhere than on Linux C's allocator has no such call.
func trimC() {}
