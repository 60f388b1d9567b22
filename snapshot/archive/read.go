package archive

import "context"

// ReadRoom yields the pairs of one room of a partition, ascending. A block is checked before any of its pairs is yielded. Key and
// value are valid until yield returns. read, if not nil, is called for each block. Neither is called by two
// goroutines at a time. A room that the snapshot does not have is empty. Errors: yield's, *Damage, wal.ErrVersion, what
// the target said.
func ReadRoom(ctx context.Context, t Target, m *Manifest, partition int, room byte, read func(*Block), yield func(key, value []byte) error) error {
	r := &restorer{target: t, manifest: m, tell: read}
	for i := range m.Partitions[partition].Rooms {
		if of := &m.Partitions[partition].Rooms[i]; of.Room[0] == room {
			s := r.open(ctx, uint16(partition), of)
			var err error
			for err == nil && s.next() {
				err = yield(s.key, s.value)
			}
			if cerr := s.close(); err == nil {
				err = cerr
			}
			return err
		}
	}
	return nil
}

// RawBytes is how many raw bytes a room has in all partitions.
func (m *Manifest) RawBytes(room byte) (raw uint64) {
	for i := range m.Partitions {
		for _, r := range m.Partitions[i].Rooms {
			if r.Room[0] == room {
				raw += r.Raw
			}
		}
	}
	return raw
}
