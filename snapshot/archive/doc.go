// Package archive saves the partitions' tables of package snapshot to a place where they survive the machine, and restores
// them. It never learns what is in them: it sees rooms, keys, values, and a state for each partition.
//
//	target := archive.OpenDir(nil, "/backup")         // or NewBucket(name, js, objectStore)
//	saved, err := archive.Save(ctx, table, target, archive.SaveOptions{Partitions: 8, Share: 0.5})
//	list, err := archive.List(ctx, target)            // newest first
//	report, err := archive.Verify(ctx, target, nil, nil)
//	manifest, err := archive.Restore(ctx, target, id, "/new", archive.RestoreOptions{})
//	pruned, err := archive.Prune(ctx, target, archive.PruneOptions{Keep: 7})
//
// # Blocks named by their content
//
// A snapshot is a manifest that names blocks, and the name of a block is its sha256 (docs/formats/snapshot.md). So
// what was saved before is not saved again, no snapshot needs another, a prune is mark and sweep, and a damaged
// block cannot pass for a whole one. Where a block ends follows from its pairs (content-defined chunking), not from a
// fixed size: after an insertion all blocks are the same again from the next common end on.
//
// Rejected: chains of differences. A restore would need a whole chain intact, a prune would rewrite it, and deletions
// would have to be kept as rows.
//
// # Snapshots are always whole
//
//   - A block has its name only once it is synced, and the manifest is written after all of its blocks. So a save that ends
//     early leaves only blocks that no manifest names, and the next save uses them.
//   - A prune deletes manifests before blocks. One lock for saves and prunes keeps a save from relying on a block that is
//     about to be deleted. In a directory it is a lock of the operating system, in a bucket an object that is renewed.
//   - A restore checks each byte that it reads, builds in another directory, and renames that.
//
// A reading order: target.go with dir.go and bucket.go, block.go (the format, and where blocks end), manifest.go, save.go with pace.go,
// verify.go, prune.go, read.go (one room), restore.go, route.go (into other partitions), part.go (one partition into a table in use).
package archive
