//go:build !cgo || !linux

package node

// trimC has nothing to give back: without cgo Pebble's memory is Go's.
func trimC() {}
