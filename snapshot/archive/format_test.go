package archive

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/s2"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/wal"
)

// The bytes of the format's page.
func TestGolden(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/snapshot.md")
	must(t, err)
	b := builder{sizes: defaultSizes}
	b.begin('w')
	for _, p := range [][2]string{{"a", "hello"}, {"b", ""}, {"c", strings.Repeat("x", 40)}} {
		if b.add([]byte(p[0]), []byte(p[1])) {
			t.Fatal("the block is full")
		}
		if p[0] == "b" {
			b.endFrame()
		}
	}
	file, info := b.end()
	var dump strings.Builder
	for line := range slices.Chunk(file, 16) {
		fmt.Fprintf(&dump, "    % x\n", line)
	}
	if !strings.Contains(string(page), dump.String()) {
		t.Errorf("the page does not have\n%s", dump.String())
	}
	if !strings.Contains(string(page), blockSum(file)) {
		t.Errorf("the page does not have the name %s", blockSum(file))
	}
	m := Manifest{
		Format: formatWhole, Time: time.UnixMilli(1_800_000_000_123).UTC(), Versions: Versions{"1.0.0", 2, "2026a"}, Prefix: "carillon",
		Partitions: []Partition{{Position: 258, State: []byte("state"), Time: time.UnixMilli(1_800_000_000_000).UTC(), Rooms: []Room{{
			Room: "w", Pairs: info.pairs, Raw: info.raw,
			Blocks: []Block{{First: info.first, Pairs: info.pairs, Raw: info.raw, Bytes: int64(len(file)), Sum: blockSum(file)}},
		}}}},
	}
	text, err := m.encode()
	must(t, err)
	if !strings.Contains(strings.Join(strings.Fields(string(page)), ""), strings.TrimSpace(string(text))) || !strings.Contains(string(page), m.ID) {
		t.Errorf("the page does not have\n%s%s", m.ID, text)
	}
	_, err = decodeManifest("m", m.ID, text)
	must(t, err)
}

// Files of later versions are refused with both numbers.
func TestLaterVersions(t *testing.T) {
	m := Manifest{Format: FormatVersion + 1, Time: time.UnixMilli(0).UTC()}
	text, err := m.encode()
	must(t, err)
	_, err = decodeManifest("m", m.ID, text)
	wantErr(t, err, wal.ErrVersion)
	if want := "m has snapshot format 3, this binary reads 2"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	b := builder{sizes: defaultSizes}
	b.begin('w')
	b.add([]byte("k"), nil)
	file, _ := b.end()
	file[len(blockMagic)]++
	_, _, err = openBlock("b", blockSum(file), file, 0)
	wantErr(t, err, wal.ErrVersion)
}

// The pairs that go into blocks come out again, whatever their sizes.
func TestBlockModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pairs := rapid.MapOfN(rapid.String(), rapid.SliceOfN(rapid.Byte(), 0, 300), 1, -1).Draw(t, "pairs")
		b := builder{sizes: sizes{
			frame: rapid.IntRange(1, 1000).Draw(t, "frame"), least: rapid.IntRange(1, 1000).Draw(t, "least"),
			mean: rapid.IntRange(1, 1000).Draw(t, "mean"), most: rapid.IntRange(1, 5000).Draw(t, "most"),
		}}
		got := map[string][]byte{}
		b.begin('w')
		end := func() {
			file, info := b.end()
			raw, read, err := openBlock("b", blockSum(file), file, 0)
			if d := cmp.Diff(info, read, cmp.AllowUnexported(blockInfo{})); err != nil || d != "" {
				t.Fatal(err, d)
			}
			for len(raw) > 0 {
				var key, value []byte
				key, value, raw, _ = cutPair(raw)
				got[string(key)] = value
			}
			b.begin('w')
		}
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			if b.add([]byte(key), pairs[key]) {
				end()
			}
		}
		if b.info.pairs > 0 {
			end()
		}
		if d := cmp.Diff(pairs, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

// What a block decompresses to has a bound that comes from its size: no small file takes all memory. Snappy itself stays below that bound.
func TestBlockTakesNoMoreThanItMay(t *testing.T) {
	pair := appendBytes(appendBytes(nil, []byte("k")), make([]byte, 32<<20))
	frame := func(packed []byte) error {
		raw, err := appendRaw(nil, frame{kind: frameSnappy, payload: packed})
		if err == nil && !bytes.Equal(raw, pair) {
			t.Error("another pair came out")
		}
		return err
	}
	must(t, frame(s2.EncodeSnappy(nil, pair)))
	for _, packed := range [][]byte{s2.Encode(nil, pair), binary.AppendUvarint(nil, uint64(len(pair)))} {
		if err := frame(packed); err == nil || !strings.Contains(err.Error(), "claims 33554438 bytes decompressed") {
			t.Errorf("%d bytes that decompress to %d: %v", len(packed), len(pair), err)
		}
	}
	b := builder{sizes: smallSizes}
	b.begin('w')
	b.add([]byte("k"), nil)
	file, _ := b.end()
	raw, _, err := readBlock("b", file, math.MaxUint64) // as a manifest may say
	if err != nil || cap(raw) > 64*len(file) {
		t.Errorf("memory for %d bytes, of a block of %d: %v", cap(raw), len(file), err)
	}
}

func FuzzReadBlock(f *testing.F) {
	b := builder{sizes: smallSizes}
	b.begin('w')
	for i := range 30 {
		b.add(fmt.Appendf(nil, "%03d", i), make([]byte, i))
	}
	file, _ := b.end()
	f.Add(bytes.Clone(file))
	f.Add([]byte(blockMagic + "\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, info, err := readBlock("b", data, 0)
		if err != nil {
			return
		}
		n := uint64(0)
		for rest, ok := raw, true; len(rest) > 0; n++ {
			if _, _, rest, ok = cutPair(rest); !ok {
				t.Fatal("a pair does not end")
			}
		}
		if n != info.pairs || uint64(len(raw)) != info.raw {
			t.Fatalf("%d pairs of %d bytes, said %d of %d", n, len(raw), info.pairs, info.raw)
		}
	})
}

func FuzzManifest(f *testing.F) {
	const short = `{"format":1,"time":"2027-01-15T08:00:00.123Z","versions":{},"prefix":"","partitions":[{"partition":0,"position":1,"state":"","rooms":[{"room":"w","pairs":1,"raw_bytes":2,"blocks":[{"sha256":"00"}]}]}]}`
	f.Add([]byte(short))
	f.Add([]byte(strings.Replace(short, `"00"`, `"`+blockSum(nil)+`"`, 1))) // is read, and its blocks
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := blockSum(body)
		text := manifestHead + sum + manifestMid + string(body) + manifestTail
		id := time.UnixMilli(1_800_000_000_123).UTC().Format(idTime) + "-" + sum[:idDigits]
		m, err := decodeManifest("m", id, []byte(text))
		if err != nil {
			if !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		for b := range m.blocks() {
			if _, err := hex.DecodeString(b.Sum); err != nil || len(b.Name()) < sumDigits {
				t.Fatal(b.Name())
			}
		}
	})
}
