//go:build !cgo || !linux

package memory

// trimC does nothing: without cgo Pebble's memory is Go's, and on other systems than Linux C's allocator has no such call.
func trimC() {}
