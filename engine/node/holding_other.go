//go:build !linux

package node

import "sync/atomic"

// looks tells one look from another.
var looks atomic.Int64

// threadUse does not know what a thread has had: all of a pause is its own.
func threadUse() use { return use{waited: looks.Add(1)} }
