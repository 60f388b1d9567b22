package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// The bytes of docs/formats/table.md.
func TestTableGolden(t *testing.T) {
	key := appendTableKey(nil, 258, 'w', []byte("k"))
	stored := appendChecksum(append(bytes.Clone(key), "hello"...))[len(key):]
	header := appendHeader(nil, Checkpoint{ID: 9, Position: 258})
	doc, err := os.ReadFile("../docs/formats/table.md")
	must(t, err)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"key", key, "74 01 02 77 6b"},
		{"undo key", appendUndoKey(nil, 258, 9, 'w', []byte("k")), "74 01 02 75 00 00 00 00 00 00 00 09 77 6b"},
		{"drop key", appendDropKey(nil, 258, 9, dropPair, 's', []byte("k")), "74 01 02 64 00 00 00 00 00 00 00 09 00 73 6b"},
		{"cut key", appendDropKey(nil, 258, 9, dropBefore, 's', []byte("k")), "74 01 02 64 00 00 00 00 00 00 00 09 01 73 6b"},
		{"generation", generation(258, roomUndo, 9), "74 01 02 75 00 00 00 00 00 00 00 09"},
		{"value", stored, goldenValue},
		{"header", header, "01 00 00 00 00 00 00 00 09 00 00 00 00 00 00 01 02"},
		{"tags", []byte{undoAbsent, undoValue, undoAppended}, "00 01 02"},
	} {
		if got := fmt.Sprintf("% x", c.got); got != c.want {
			t.Errorf("%s is\n%s, want\n%s", c.name, got, c.want)
		}
		if c.name != "tags" && !bytes.Contains(doc, []byte(c.want)) {
			t.Errorf("docs/formats/table.md does not show the %s: %s", c.name, c.want)
		}
	}
	data, err := cutChecksum(xxhash.New(), key, stored)
	must(t, err)
	if string(data) != "hello" {
		t.Errorf("decoded %q", data)
	}
	base, err := decodeHeader(header)
	must(t, err)
	if base != (Checkpoint{9, 258}) {
		t.Errorf("decoded %v", base)
	}
	_, err = decodeHeader(appendHeader(nil, Checkpoint{Position: 258})) // the ID of none
	wantErr(t, err, wal.ErrCorrupt)
}

const goldenValue = "68 65 6c 6c 6f 47 a9 bf 94"

// A stored value is either read as it was stored, or is an error of a known class.
func FuzzTableValue(f *testing.F) {
	key := appendTableKey(nil, 1, roomBase, []byte{headerKey})
	for _, data := range [][]byte{nil, []byte("x"), appendHeader(nil, Checkpoint{1, 2}), {tableVersion + 1}, {0}} {
		stored := appendChecksum(append(bytes.Clone(key), data...))[len(key):]
		f.Add(key, stored)
		f.Add(key[1:], stored)
		f.Add(key, stored[:len(stored)-1])
	}
	f.Fuzz(func(t *testing.T, key, stored []byte) {
		data, err := cutChecksum(xxhash.New(), key, stored)
		if err != nil {
			wantErr(t, err, wal.ErrCorrupt)
			data = stored // so that arbitrary bytes reach the header's decoder, too
		} else if again := appendChecksum(append(bytes.Clone(key), data...)); !bytes.Equal(again[len(key):], stored) {
			t.Fatalf("% x holds what is stored as % x", stored, again[len(key):])
		}
		base, err := decodeHeader(data)
		if err != nil {
			if !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
				t.Fatalf("error without class: %v", err)
			}
		} else if again := appendHeader(nil, base); !bytes.Equal(again, data) {
			t.Fatalf("% x decodes to what encodes as % x", data, again)
		}
	})
}
