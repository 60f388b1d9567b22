//go:build !linux

package node

import "sync/atomic"

// looks counts the calls of threadUsage, so that no two results are the same.
var looks atomic.Int64

// threadUsage cannot tell here what a thread has used. It looks as if the thread always waited, so all of a pause is its own.
func threadUsage() usage { return usage{waited: looks.Add(1)} }
