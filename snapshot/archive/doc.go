// Package archive saves the partitions' tables of package snapshot to where they survive the machine, and brings
// them back. It never learns what is in them: rooms, keys, values, and a state row.
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
// A snapshot is a manifest that names blocks, and a block is called after its sha256: docs/formats/snapshot.md. So
// what was saved before is not saved again, no snapshot needs another, a prune is mark and sweep, and a damaged
// block cannot pass for a whole one. Blocks end where their pairs say so, not at fixed sizes: after an insertion the
// next common end brings everything behind it back in step. (Chains of differences were rejected: a restore would
// need all of a chain whole, a prune would rewrite it, and deletions would have to be kept as rows.)
//
// # What is there is whole
//
//   - A block has its name only once it is synced, and the manifest comes after all blocks are: a save that ends
//     early leaves blocks that nobody names, and the next one uses them.
//   - Manifests go before blocks do. One lock for saves and prunes keeps a save from counting on a block that is
//     about to go. In a directory it is the operating system's, in a bucket an object that is renewed.
//   - A restore checks each byte that it reads, builds beside, and renames.
//
// A reading order: target.go with dir.go and bucket.go, block.go (the format, and where blocks end), manifest.go, save.go with pace.go,
// verify.go, prune.go, read.go (one room), restore.go, route.go (into other partitions), part.go (one partition into a table in use).
package archive
