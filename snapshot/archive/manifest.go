package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/wal"
)

// FormatVersion is the newest format of manifests that this binary writes and reads. Only parts have it. A whole snapshot has
// formatWhole, which older binaries can read, too.
const (
	FormatVersion = 2
	formatWhole   = 1
)

// Folders of an archive.
const (
	snapshotsFolder = "snapshots"
	blocksFolder    = "blocks"
	manifestEnd     = ".json"
)

// Manifest describes a snapshot: what it is of, and which blocks hold it. Times are UTC.
type Manifest struct {
	ID         string      `json:"-"` // <time>-<beginning of its sha256>
	Format     int         `json:"format"`
	Time       time.Time   `json:"time"` // when the save began
	Versions   Versions    `json:"versions"`
	Prefix     string      `json:"prefix"`         // of the service's subjects
	Part       bool        `json:"part,omitempty"` // it has only some of the service's partitions, which one node gives to another
	Partitions []Partition `json:"partitions"`
}

// Versions are the versions of the engine that the state comes from.
type Versions struct {
	Carillon string `json:"carillon"`
	Logic    int    `json:"logic"`
	TZData   string `json:"tzdata"`
}

// Partition is a partition's state at a position of the log. Positions differ among partitions.
type Partition struct {
	Partition uint16    `json:"partition"`
	Position  uint64    `json:"position"`        // sequence up to which the log has been applied
	Time      time.Time `json:"time,omitzero"`   // up to which it has fired, if the saver knew it (SaveOptions.Time)
	State     []byte    `json:"state"`           // of the checkpoint (snapshot.Build.State)
	Rooms     []Room    `json:"rooms,omitempty"` // ascending, those that are not empty
}

// Room describes the sorted pairs of a room, which are in blocks.
type Room struct {
	Room   string  `json:"room"` // one character
	Pairs  uint64  `json:"pairs"`
	Raw    uint64  `json:"raw_bytes"` // keys, values and their lengths
	Blocks []Block `json:"blocks"`
}

// Block names and describes a block, which has a run of pairs.
type Block struct {
	First []byte `json:"first"` // its first key
	Pairs uint64 `json:"pairs"`
	Raw   uint64 `json:"raw_bytes"`
	Bytes int64  `json:"bytes"` // of the file
	Sum   string `json:"sha256"`
}

// Name is the name of the block's object.
func (b *Block) Name() string { return blockName(b.Sum) }

func blockName(sum string) string { return path.Join(blocksFolder, sum[:2], sum) }

func manifestName(id string) string { return path.Join(snapshotsFolder, id+manifestEnd) }

// isManifest tells whether a file has the name of a manifest.
func isManifest(file string) bool {
	id, ok := strings.CutSuffix(file, manifestEnd)
	when, sum, _ := strings.Cut(id, "-")
	_, err := time.Parse(idTime, when)
	return ok && err == nil && len(sum) == idDigits && hexBytes([]byte(sum)) != nil
}

// isSum tells whether a text is a sha256 as in the name of a block.
func isSum(text string) bool {
	return len(text) == sumDigits && hexBytes([]byte(text)) != nil && strings.ToLower(text) == text
}

// blocksIn lists the blocks of an archive. Files of other names in its folder are not its own.
func blocksIn(ctx context.Context, t Target) ([]Object, error) {
	objects, err := t.List(ctx, blocksFolder)
	return slices.DeleteFunc(objects, func(o Object) bool {
		sum := path.Base(o.Name)
		return !isSum(sum) || o.Name != blockName(sum)
	}), err
}

// Totals are sums over a snapshot.
type Totals struct {
	Pairs, Raw, Blocks uint64
	Bytes              int64 // of the blocks' files, which it may share with other snapshots
}

// Totals sums up the partitions.
func (m *Manifest) Totals() Totals {
	var t Totals
	for b := range m.blocks() {
		t.Pairs += b.Pairs
		t.Raw += b.Raw
		t.Bytes += b.Bytes
		t.Blocks++
	}
	return t
}

// blocks yields each block, in order.
func (m *Manifest) blocks() func(yield func(*Block) bool) {
	return func(yield func(*Block) bool) {
		for p := range m.Partitions {
			for r := range m.Partitions[p].Rooms {
				blocks := m.Partitions[p].Rooms[r].Blocks
				for i := range blocks {
					if !yield(&blocks[i]) {
						return
					}
				}
			}
		}
	}
}

// The parts of a manifest's file around the manifest and its sha256; lengths and forms of names.
const (
	manifestHead = `{"sha256":"`
	manifestMid  = `","snapshot":`
	manifestTail = "}\n"
	sumDigits    = 2 * sha256.Size
	idTime       = "20060102T150405.000Z"
	idDigits     = 16
)

// encode returns the file, and sets the ID.
func (m *Manifest) encode() ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := blockSum(body)
	m.ID = m.Time.Format(idTime) + "-" + sum[:idDigits]
	return slices.Concat([]byte(manifestHead), []byte(sum), []byte(manifestMid), body, []byte(manifestTail)), nil
}

// decodeManifest decodes and checks the manifest of the snapshot with this ID; file names it in errors. Errors: *Damage,
// wal.ErrVersion.
func decodeManifest(file, id string, b []byte) (*Manifest, error) {
	const begin = len(manifestHead) + sumDigits + len(manifestMid)
	if len(b) < begin+len(manifestTail) {
		return nil, damaged(file, len(b), "the file ends too early")
	}
	body := b[begin : len(b)-len(manifestTail)]
	head := manifestHead + blockSum(body) + manifestMid
	if i := differs(b[:begin], head); i >= 0 {
		return nil, damaged(file, i, "the sha256 of what follows does not match")
	}
	if i := differs(b[len(b)-len(manifestTail):], manifestTail); i >= 0 {
		return nil, damaged(file, len(b)-len(manifestTail)+i, "the file does not end as a manifest does")
	}
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(body, &version); err != nil {
		return nil, damaged(file, begin, "%v", err)
	}
	if version.Format > FormatVersion {
		return nil, fmt.Errorf("%w: %s has snapshot format %d, this binary reads %d", wal.ErrVersion, file, version.Format, FormatVersion)
	}
	m := new(Manifest)
	if err := json.Unmarshal(body, m); err != nil {
		return nil, damaged(file, begin, "%v", err)
	}
	m.ID = id
	if err := m.check(string(b[len(manifestHead):][:idDigits])); err != nil {
		return nil, damaged(file, begin, "%v", err)
	}
	return m, nil
}

// hexBytes decodes hexadecimal digits; nil if they are none.
func hexBytes(b []byte) []byte {
	out, err := hex.DecodeString(string(b))
	if err != nil {
		return nil
	}
	return out
}

// differs returns the offset of the first byte that differs; -1 if none does.
func differs(b []byte, want string) int {
	for i := range b {
		if b[i] != want[i] {
			return i
		}
	}
	return -1
}

// check checks what readers rely on and the checksum does not show.
func (m *Manifest) check(sum string) error {
	if m.Format < 1 {
		return fmt.Errorf("format %d", m.Format)
	}
	if want := m.Time.Format(idTime) + "-" + sum; m.ID != want {
		return fmt.Errorf("the file is that of snapshot %s", want)
	}
	if len(m.Partitions) == 0 {
		return errors.New("no partitions")
	}
	for i := range m.Partitions {
		p := &m.Partitions[i]
		if !m.Part && int(p.Partition) != i || m.Part && i > 0 && p.Partition <= m.Partitions[i-1].Partition {
			return fmt.Errorf("partition %d is at the place of %d", p.Partition, i)
		}
		last := ""
		for _, r := range p.Rooms {
			if len(r.Room) != 1 || r.Room <= last || len(r.Blocks) == 0 {
				return fmt.Errorf("partition %d: room %q of %d blocks after %q", i, r.Room, len(r.Blocks), last)
			}
			last = r.Room
			for _, b := range r.Blocks {
				if !isSum(b.Sum) {
					return fmt.Errorf("partition %d, room %q: block %q", i, r.Room, b.Sum)
				}
			}
		}
	}
	return nil
}

// Entry is a snapshot in a List: its manifest, or why that cannot be read.
type Entry struct {
	ID       string
	Manifest *Manifest
	Err      error // *Damage or wal.ErrVersion: then Manifest is nil
}

// List returns the snapshots of an archive, newest first. It looks at manifests only. Errors: what the target said.
func List(ctx context.Context, t Target) ([]Entry, error) {
	entries, err := listed(ctx, t)
	pruned := func(e Entry) bool { return errors.Is(e.Err, ErrNotFound) } // since its name was listed
	return slices.DeleteFunc(entries, pruned), err
}

// listed is List, but has an entry with ErrNotFound for each snapshot that was pruned meanwhile. Under the archive's lock there is none.
func listed(ctx context.Context, t Target) ([]Entry, error) {
	objects, err := t.List(ctx, snapshotsFolder)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, o := range objects {
		id, ok := strings.CutSuffix(path.Base(o.Name), manifestEnd)
		if !ok {
			continue
		}
		m, err := get(ctx, t, id)
		if err != nil && !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		entries = append(entries, Entry{ID: id, Manifest: m, Err: err})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(b.ID, a.ID) })
	return entries, nil
}

// Get returns a snapshot's manifest. With id "" it is the newest, if all snapshots in the archive are of one service. Errors:
// ErrNotFound, ErrAmbiguous, ErrPart, *Damage, wal.ErrVersion.
func Get(ctx context.Context, t Target, id string) (*Manifest, error) {
	m, err := getOrNewest(ctx, t, id)
	if err == nil && m.Part {
		return nil, fmt.Errorf("%w: %s", ErrPart, t.Path(manifestName(m.ID)))
	}
	return m, err
}

func getOrNewest(ctx context.Context, t Target, id string) (*Manifest, error) {
	if id != "" {
		return get(ctx, t, id)
	}
	entries, err := List(ctx, t)
	if err != nil {
		return nil, err
	}
	if prefixes := prefixesOf(entries); len(prefixes) > 1 {
		return nil, fmt.Errorf("%w, with the prefixes %q: %s", ErrAmbiguous, prefixes, t)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%w: no snapshot in %s", ErrNotFound, t)
	}
	return entries[0].Manifest, entries[0].Err
}

// prefixesOf returns the prefixes of the services that the snapshots are of, ascending.
func prefixesOf(entries []Entry) (prefixes []string) {
	for _, e := range entries {
		if e.Err == nil {
			prefixes = append(prefixes, e.Manifest.Prefix)
		}
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes)
}

// newestOf returns the newest snapshot of a service, by its prefix; nil if none can be read.
func newestOf(ctx context.Context, t Target, prefix string) *Manifest {
	objects, err := t.List(ctx, snapshotsFolder)
	if err != nil {
		return nil
	}
	for _, o := range slices.Backward(objects) {
		m, err := get(ctx, t, strings.TrimSuffix(path.Base(o.Name), manifestEnd))
		if err == nil && m.Prefix == prefix {
			return m
		}
	}
	return nil
}

// maxManifest bounds a manifest: room for five million blocks, some terabytes of jobs.
const maxManifest = 1 << 30

func get(ctx context.Context, t Target, id string) (*Manifest, error) {
	name := manifestName(id)
	b, err := t.Get(ctx, name, maxManifest)
	if err != nil {
		return nil, err
	}
	return decodeManifest(t.Path(name), id, b)
}
