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

// trimC gives the free memory of C's allocator back to the system. Pebble's memtables and blocks are allocated there. By itself the
// allocator keeps free memory that is not at the end of an arena, and each thread may have an arena.
func trimC() { C.trim() }
