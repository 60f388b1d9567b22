//go:build !linux

package node

import "sync/atomic"

// looks counts the calls of threadUse, so that no two results are the same.
var looks atomic.Int64

// threadUse cannot tell here what a thread has used. It looks as if the thread always waited, so all of a pause is its own.
func threadUse() use { return use{waited: looks.Add(1)} }
