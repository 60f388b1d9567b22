//go:build cgo && linux

package memory

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void trim(void) { malloc_trim(0); }
// #else
// static void trim(void) {}
// #endif
import "C"

// trimC gives back to the system what C's allocator has free. Pebble's memtables and blocks are from there, and it keeps by itself
// what is not at the end of an arena, of which each thread may have one.
func trimC() { C.trim() }
