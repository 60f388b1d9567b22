package engine

import (
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// testEpoch is when the tests' logs begin, unix ms.
var testEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

// The code writes the golden bytes of docs/formats, and reads them back.

func TestRecordGolden(t *testing.T) {
	page := golden(t, "log-record.md")
	r := Record{
		Seq: 300, Time: 1_767_225_600_123_456_789, Subject: "carillon.log.3.put.a",
		Header: []Field{{"Carillon-Request", "r1"}}, Data: []byte(`{"schedule":"@every 1s"}`),
	}
	page.is(t, "record", AppendRecord(nil, &r))
	got, err := DecodeRecord(300, page["record"])
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("record: %v\n%s", err, diff)
	}

	page.is(t, "heal", EncodeHeal(&r))
	healed, err := DecodeHeal(page["heal"])
	if diff := cmp.Diff(r, healed); err != nil || diff != "" {
		t.Errorf("heal: %v\n%s", err, diff)
	}

	ticks := []Tick{
		{Partition: 0, To: 1_767_225_600_000, Epoch: 7, Limit: 512},
		{Partition: 5, To: 1_767_225_600_001, Epoch: 300, Limit: 0, Acked: Acked{Output: 9, Seq: 10}, Mark: Mark{Position: 11, Digest: 0x0123456789abcdef}},
	}
	page.is(t, "tick", EncodeTicks(ticks))
	gotTicks, err := DecodeTicks(page["tick"])
	if diff := cmp.Diff(ticks, gotTicks); err != nil || diff != "" {
		t.Errorf("tick: %v\n%s", err, diff)
	}

	claim := Claim{Node: "n1", Logic: 1, TZData: "2025c", RetentionMS: 86_400_000, CompletedMax: 100_000}
	page.is(t, "claim", claim.Encode())
	gotClaim, err := DecodeClaim(page["claim"])
	if diff := cmp.Diff(claim, gotClaim); err != nil || diff != "" {
		t.Errorf("claim: %v\n%s", err, diff)
	}
}

func TestDiskGolden(t *testing.T) {
	page := golden(t, "log-record.md")
	disk := Disk{Epoch: 300, Low: true}
	page.is(t, "disk", disk.Encode())
	got, err := DecodeDisk(page["disk"])
	if err != nil || got != disk {
		t.Errorf("disk: %+v, %v", got, err)
	}
	for _, b := range [][]byte{nil, {1}, {2, 1, 1}, {1, 1, 2}, {1, 1, 1, 0}, page["disk"][:3]} {
		if got, err := DecodeDisk(b); err == nil {
			t.Errorf("disk of %x: %+v", b, got)
		}
	}
}

func TestRowsGolden(t *testing.T) {
	page := golden(t, "rows.md")
	job := carillon.Job{
		Schedule: "0 30 9 * * MON-FRI", Zone: "Europe/Paris", Gap: carillon.GapSkip, Fold: carillon.FoldBoth,
		Start: time.UnixMilli(1_767_225_600_000).UTC(), End: time.UnixMilli(1_798_761_600_000).UTC(), MaxFires: 1000, Spread: 30 * time.Second,
		Misfire: carillon.Skip, Expires: 10 * time.Minute, Topic: "billing.renewals", Priority: carillon.High,
		Payload: []byte(`{"n":1}`), Form: carillon.PayloadJSON, Headers: map[string]string{"Tenant": "acme", "Lang": "fr"},
		Owner: "acme", Labels: map[string]string{"team": "billing"},
	}
	page.is(t, "spec", encodeSpec(&job))
	back, err := decodeSpec(page["spec"])
	if diff := cmp.Diff(job, back); err != nil || diff != "" {
		t.Errorf("spec: %v\n%s", err, diff)
	}

	// Every kind of row: a job on the wheel, a ready one, a paused one, a completed one, a deleted one, a forced fire, a
	// refusal that waits, and outputs that are not yet stored for good.
	m := New(Layout{"carillon", 1}, 0)
	claim := Claim{Node: "n1", Logic: 1, TZData: Rules().TZData, RetentionMS: 60_000, CompletedMax: 10}
	var seq uint64
	apply := func(kind string, data []byte) {
		t.Helper()
		seq++
		r := Record{Seq: seq, Time: testEpoch * 1e6, Subject: "carillon.log.0." + kind, Data: data}
		if seq == 2 {
			r.Header = []Field{{carillon.HeaderRequest, "r1"}}
		}
		e := m.layout.Decode(&r)
		if _, err := m.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	apply("claim", claim.Encode())
	apply("put.a", []byte(`{"schedule":"@every 1s","payload":1}`))
	apply("put.b", []byte(`{"schedule":"@in 5ms","priority":"high"}`))
	apply("put.c", []byte(`{"schedule":"@every 1s"}`))
	apply("pause.c", nil)
	apply("fire.a", []byte(`{"payload":2}`))
	apply("put.d", []byte(`{"schedule":"@at 2025-12-31T23:59:58Z","priority":"high"}`))
	apply("put.e", []byte(`{"schedule":"@at 2025-12-31T23:59:57Z","priority":"high"}`))
	apply("tick", EncodeTicks([]Tick{{To: testEpoch + 5, Epoch: 1, Limit: 3}}))
	apply("delete.d", nil)
	apply("put.b", []byte(`{"schedule":"@at 2025-12-31T23:59:59Z"}`))
	apply("fire.c", []byte(`{"payload":3}`))
	apply("delete.x", nil)
	m.claim.TZData = "2025c" // the page's bytes do not change with the zone rules
	page.is(t, "checkpoint", encoded(wholeOf(t, m)))
	restored, err := Open(m.layout, 0, decoded(page["checkpoint"]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Stats(), restored.Stats(), ignoreHere); diff != "" {
		t.Error(diff)
	}
	same(t, m, restored)
}

// Rows and specs of a later version are refused because of it, in whatever room and whatever else has changed in them. Version 0 is damage.
func TestNewerRows(t *testing.T) {
	layout := Layout{"carillon", 1}
	checkpoint := decoded(golden(t, "rows.md")["checkpoint"])
	state, err := ReadState(checkpoint.state)
	if err != nil {
		t.Fatal(err)
	}
	readers := map[string]func() error{
		"Open": func() error { _, err := Open(layout, 0, checkpoint); return err },
		"OpenCold and all jobs": func() error {
			m, err := OpenCold(layout, 0, checkpoint)
			if err == nil {
				err = m.loadAll()
			}
			return err
		},
		"OpenCold and a job": func() error {
			m, err := OpenCold(layout, 0, checkpoint)
			for _, id := range []string{"a", "b", "c", "e"} {
				if err == nil {
					m.Job(id, nil)
					err = m.Err()
				}
			}
			return err
		},
		"Extractor": func() error {
			x := NewExtractor(state, carillon.Selection{})
			for _, room := range x.Rooms() {
				if _, err := checkpoint.Scan(room, nil, nil, 0, func(key, value []byte) error {
					return x.Take(room, key, value, func(carillon.ImportJob) error { return nil })
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for room, rows := range checkpoint.rooms {
		for key, value := range rows {
			if room == roomIDs {
				continue
			}
			for what, changed := range map[string][]byte{
				"only the version": append([]byte{2}, value[1:]...), "all": {2, 0xff, 0xff}, "shorter": {2}, "no version": append([]byte{0}, value[1:]...),
			} {
				for by, read := range readers {
					inJobs := room == roomWaiting || room == roomIdle || room == roomCompleted || room == roomSpecs
					if !inJobs && by == "Extractor" {
						continue
					}
					rows[key] = changed
					err := read()
					rows[key] = value
					newer := errors.Is(err, ErrVersion) && strings.Contains(err.Error(), "of version 2, this binary reads 1")
					if !errors.Is(err, ErrCheckpoint) || newer != (changed[0] == 2) {
						t.Errorf("room %q, key %x, changed %s, %s: %v", room, key, what, by, err)
					}
				}
			}
		}
	}
}

// A checkpoint of another service or partition is refused, and so is one that lacks its newest output.
func TestOpenRefuses(t *testing.T) {
	checkpoint := decoded(golden(t, "rows.md")["checkpoint"])
	refused := func(what string, layout Layout, partition int) {
		t.Helper()
		for by, open := range map[string]func(Layout, int, Table) (*Machine, error){"Open": Open, "OpenCold": OpenCold} {
			if _, err := open(layout, partition, checkpoint); !errors.Is(err, ErrCheckpoint) {
				t.Errorf("%s, %s: %v", what, by, err)
			}
		}
	}
	refused("another prefix", Layout{"else", 1}, 0)
	refused("other partitions", Layout{"carillon", 2}, 0)
	refused("another partition", Layout{"carillon", 1}, 1)
	outputs := checkpoint.rooms[roomOutputs]
	delete(outputs, slices.Max(slices.Collect(maps.Keys(outputs))))
	refused("an output is missing", Layout{"carillon", 1}, 0)
}

// A state of a later version is refused because of it, and so is a record; of an earlier one than the first, they are damaged.
func TestNewerStateAndRecord(t *testing.T) {
	state := decoded(golden(t, "rows.md")["checkpoint"]).state
	record := golden(t, "log-record.md")["record"]
	for _, version := range []byte{0, 3} {
		for what, rest := range map[string][]byte{"only the version": state[1:], "all": {0xff}} {
			_, err := ReadState(append([]byte{version}, rest...))
			if !errors.Is(err, ErrCheckpoint) || errors.Is(err, ErrVersion) != (version > 0) {
				t.Errorf("state of version %d, changed %s: %v", version, what, err)
			}
		}
		for what, rest := range map[string][]byte{"only the version": record[1:], "all": {0xff}} {
			_, err := DecodeRecord(300, append([]byte{version}, rest...))
			if errors.Is(err, ErrVersion) != (version > 0) || errors.Is(err, ErrRecord) != (version == 0) {
				t.Errorf("record of version %d, changed %s: %v", version, what, err)
			}
		}
	}
}

// ignoreHere leaves out the counts that are not part of the state.
var ignoreHere = cmp.FilterPath(func(p cmp.Path) bool {
	return p.Last().String() == ".Rejected" || p.Last().String() == ".Dirty"
}, cmp.Ignore())

// encoded is a checkpoint in one piece, as the page has it: the state, then the pairs by room and key.
func encoded(v memtable.View) []byte {
	state, _ := v.State() // it is in memory
	b := appendString(nil, state)
	for _, room := range allRooms {
		_, _ = v.Scan(room, nil, nil, 0, func(key, value []byte) error {
			b = appendString(appendString(append(b, room), key), value)
			return nil
		})
	}
	return b
}

// pairs is a checkpoint of arbitrary bytes.
type pairs struct {
	state []byte
	rooms map[byte]map[string][]byte
}

func decoded(b []byte) pairs {
	d := decoder{b: b}
	p := pairs{d.bytes(), make(map[byte]map[string][]byte)}
	for len(d.b) > 0 {
		room, key, value := d.byte(), d.string(), d.bytes()
		if p.rooms[room] == nil {
			p.rooms[room] = make(map[string][]byte)
		}
		p.rooms[room][key] = value
	}
	return p
}

func (p pairs) State() ([]byte, error) { return p.state, nil }

func (p pairs) Get(room byte, key []byte) (value []byte, found bool, err error) {
	value, found = p.rooms[room][string(key)]
	return value, found, nil
}

func (p pairs) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (bool, error) {
	n := 0
	for _, key := range slices.Sorted(maps.Keys(p.rooms[room])) {
		if above != nil && key <= string(above) || below != nil && key >= string(below) {
			continue
		}
		if n++; limit > 0 && n > limit {
			return true, nil
		}
		if err := yield([]byte(key), p.rooms[room][key]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// bytesOf are a page's golden blocks, by name.
type bytesOf map[string][]byte

// golden reads the indented hexadecimal lines of a format's page that follow a line "Golden NAME:".
func golden(t testing.TB, page string) bytesOf {
	t.Helper()
	text, err := os.ReadFile("../docs/formats/" + page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := make(bytesOf)
	name := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "Golden "); ok {
			name = rest[:strings.IndexAny(rest, ":,")]
			continue
		}
		digits, indented := strings.CutPrefix(line, "    ")
		if !indented {
			if line != "" && len(blocks[name]) > 0 {
				name = ""
			}
			continue
		}
		if name == "" {
			continue
		}
		digits, _, _ = strings.Cut(digits, "|")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v in %q", page, err, line)
		}
		blocks[name] = append(blocks[name], b...)
	}
	return blocks
}

func (b bytesOf) is(t *testing.T, name string, got []byte) {
	t.Helper()
	if string(got) != string(b[name]) {
		t.Errorf("%s: the code writes\n%s", name, dump(got))
	}
}

// dump writes bytes as the pages have them.
func dump(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(16, len(b))
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' || r == '|' {
				return '.'
			}
			return r
		}, latin(b[:n]))
		s.WriteString("    " + pad(hexPairs(b[:n]), 47) + "  | " + text + "\n")
		b = b[n:]
	}
	return s.String()
}

func latin(b []byte) string {
	r := make([]rune, len(b))
	for i, c := range b {
		r[i] = rune(c)
	}
	return string(r)
}

func hexPairs(b []byte) string {
	pairs := make([]string, len(b))
	for i := range b {
		pairs[i] = hex.EncodeToString(b[i : i+1])
	}
	return strings.Join(pairs, " ")
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-len(s))) }
