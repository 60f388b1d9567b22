package wal

import (
	"context"
	"strconv"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// SSTable is a sorted file that is built beside the database, and then taken in whole by Ingest. Its bytes go
// neither through Pebble's log nor through a memtable, so no fsync of the log has to write them.
type SSTable struct {
	store *Store
	path  string
	w     *sstable.Writer
}

// NewSSTable begins a table. It must be closed, and then ingested or removed.
func (s *Store) NewSSTable() (*SSTable, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	path := s.fence.PathJoin(s.opts.Dir, tableDir, strconv.FormatUint(s.tables.Add(1), 10))
	f, err := s.fence.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	// Synced bit by bit, like Pebble's own tables, so that the sync at its end does not hold up the log's fsyncs.
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: s.popts.BytesPerSync})
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.popts.MakeWriterOptions(0, s.db.TableFormat()))
	return &SSTable{store: s, path: path, w: w}, nil
}

// Set adds a pair; keys must ascend. Errors: ErrFailed, ErrClosed.
func (t *SSTable) Set(key, value []byte) error {
	if err := t.store.enter(); err != nil {
		return err
	}
	defer t.store.leave()
	return t.store.wrap(t.w.Set(key, value))
}

// Delete deletes a pair that is in the store. Keys must ascend together with those of Set. Errors: Set's.
func (t *SSTable) Delete(key []byte) error {
	if err := t.store.enter(); err != nil {
		return err
	}
	defer t.store.leave()
	return t.store.wrap(t.w.Delete(key))
}

// DeleteRange deletes the pairs in [from, to) that are in the store, not those of the table itself. Ranges must ascend
// among themselves. Errors: Set's.
func (t *SSTable) DeleteRange(from, to []byte) error {
	if err := t.store.enter(); err != nil {
		return err
	}
	defer t.store.leave()
	return t.store.wrap(t.w.DeleteRange(from, to))
}

// Close completes the file and syncs it.
func (t *SSTable) Close() error { return t.store.wrap(t.w.Close()) }

// Remove deletes a closed table that will not be ingested.
func (t *SSTable) Remove() error {
	if err := t.store.enter(); err != nil {
		return err
	}
	defer t.store.leave()
	return t.store.wrap(t.store.fence.Remove(t.path))
}

// Ingest applies the changes of closed tables, which must not overlap, to the store: all or none, and they are on
// disk when it returns. Errors: ErrFailed, ErrClosed.
func (s *Store) Ingest(tables []*SSTable) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	paths := make([]string, len(tables))
	for i, t := range tables {
		paths[i] = t.path
	}
	if err := s.db.Ingest(context.Background(), paths); err != nil {
		return s.wrap(err)
	}
	return s.fence.err()
}
