// Package snapshot keeps checkpoints of partitions' state in a wal.Store, as one Table of sorted pairs. It never
// learns what is in them. A checkpoint writes what changed since the one before, all or nothing; the two newest can
// be read, pair by pair and in ranges. Type Table says how that works, and docs/formats/table.md has the format.
//
// The log must be kept from the older checkpoint's position on.
//
// A reading order: table.go, table_format.go (its keys), table_view.go (reading), table_build.go (a checkpoint), bulkload.go (the first one
// of a partition), export.go (what an archive saves).
package snapshot
