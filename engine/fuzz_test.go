package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
)

var fuzzLayout = Layout{"carillon", 2}

func FuzzDecodeRecord(f *testing.F) {
	r := Record{Seq: 3, Time: 1, Subject: "carillon.log.0.put.a", Header: []Field{{"A", "b"}}, Data: []byte("{}")}
	f.Add(AppendRecord(nil, &r))
	f.Add(EncodeHeal(&r))
	f.Add(Disk{Epoch: 300, Low: true}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeRecord(7, b); err == nil {
			again, err := DecodeRecord(7, AppendRecord(nil, &r))
			if diff := cmp.Diff(r, again); err != nil || diff != "" {
				t.Fatalf("%v\n%s", err, diff)
			}
		}
		if r, err := DecodeHeal(b); err == nil {
			again, err := DecodeHeal(EncodeHeal(&r))
			if diff := cmp.Diff(r, again); err != nil || diff != "" {
				t.Fatalf("%v\n%s", err, diff)
			}
		}
		if d, err := DecodeDisk(b); err == nil {
			if again, err := DecodeDisk(d.Encode()); err != nil || again != d {
				t.Fatalf("%v, %+v is not %+v", err, again, d)
			}
		}
		for _, subject := range []string{"tick", "claim", "disk", "import", "heal", "put.a"} {
			fuzzLayout.Decode(&Record{Seq: 7, Subject: "carillon.log.0." + subject, Data: b})
		}
		fuzzLayout.Decode(&Record{Seq: 7, Subject: string(b)})
	})
}

func FuzzDecodeTicks(f *testing.F) {
	f.Add(EncodeTicks([]Tick{{Partition: 1, To: 2, Epoch: 3, Limit: 4, Acked: Acked{5, 6}, Mark: Mark{7, 8}}}))
	f.Add(EncodeTicks(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		ticks, err := DecodeTicks(b)
		if err != nil {
			return
		}
		again, err := DecodeTicks(EncodeTicks(ticks))
		if diff := cmp.Diff(ticks, again); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

// FuzzOpen reads arbitrary bytes as a checkpoint. That fails, or gives a machine that can go on and whose own
// checkpoint can be read.
func FuzzOpen(f *testing.F) {
	m := New(fuzzLayout, 0)
	for _, r := range fuzzRecords(bytes.Repeat([]byte("\x00\x05\x01\x06\x15\x07\x25\x0b\x35\x01\x45\x0b"), 4)) {
		r.Seq = m.position + 1
		e := fuzzLayout.Decode(&r)
		if _, err := m.Apply(&e); err != nil {
			f.Fatal(err)
		}
		m.position = r.Seq
	}
	f.Add(encoded(wholeOf(f, m)))
	f.Add(encoded(wholeOf(f, New(fuzzLayout, 0))))
	f.Fuzz(func(t *testing.T, b []byte) { goOnFrom(t, b) })
}

// TestOpenDamaged changes single bytes of a checkpoint. The table's checksums would find each change; but even without them
// it must do no worse than fail.
func TestOpenDamaged(t *testing.T) {
	whole := golden(t, "rows.md")["checkpoint"]
	for i := range whole {
		for _, flip := range []byte{1, 2, 3, 0x80, 0xff} {
			b := bytes.Clone(whole)
			b[i] ^= flip
			goOnFrom(t, b)
		}
	}
}

// FuzzMoved reads arbitrary bytes as the checkpoint in a snapshot that is repartitioned, or whose jobs are put into another service. That
// fails, or gives states that can be read.
func FuzzMoved(f *testing.F) {
	f.Add(golden(f, "rows.md")["checkpoint"])
	f.Add(encoded(wholeOf(f, New(fuzzLayout, 0))))
	f.Fuzz(func(t *testing.T, b []byte) { moveElsewhere(t, b) })
}

func moveElsewhere(t *testing.T, b []byte) {
	checkpoint := decoded(b)
	for _, only := range []carillon.Selection{{}, {Prefix: "a"}, {Owner: "o"}} {
		if err := repartitioned(t, checkpoint, only); err != nil && !errors.Is(err, ErrCheckpoint) {
			t.Fatal(err)
		}
		if err := extracted(checkpoint, only); err != nil && !errors.Is(err, ErrCheckpoint) {
			t.Fatal(err)
		}
	}
}

// repartitioned repartitions a checkpoint, and reads the states that it gets.
func repartitioned(t *testing.T, checkpoint pairs, only carillon.Selection) error {
	s, err := ReadState(checkpoint.state)
	if err != nil {
		return err
	}
	r, err := NewRepartition([]*SavedState{s}, 3, s.Position, only)
	if err != nil {
		return nil // its counts are too great
	}
	scan := func(room byte, yield func(key, value []byte) error) {
		if err == nil {
			_, err = checkpoint.Scan(room, nil, nil, 0, yield)
		}
	}
	for _, room := range r.Rooms() {
		scan(room, func(key, value []byte) error { return r.Inspect(0, room, key, value) })
	}
	if err == nil {
		r.Prepare()
	}
	for _, room := range allRooms {
		scan(room, func(key, value []byte) error { _, _, err := r.Route(0, room, key, value); return err })
	}
	if err != nil {
		return err
	}
	all, _ := r.States()
	for _, state := range all {
		if _, err := ReadState(state); err != nil {
			t.Fatalf("a state of a repartition: %v", err)
		}
	}
	return nil
}

// extracted takes the jobs out of a checkpoint.
func extracted(checkpoint pairs, only carillon.Selection) error {
	s, err := ReadState(checkpoint.state)
	if err != nil {
		return err
	}
	x := NewExtractor(s, only)
	for _, room := range x.Rooms() {
		if _, err := checkpoint.Scan(room, nil, nil, 0, func(key, value []byte) error {
			return x.Take(room, key, value, func(j carillon.ImportJob) error {
				_ = j.Job.Validate() // foreign bytes may hold a job that is not valid, and must not make it panic
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return x.End()
}

// goOnFrom restores a machine, if it can be, and lets it go on.
func goOnFrom(t *testing.T, b []byte) {
	checkpoint := decoded(b)
	if checkpoint.state == nil {
		return
	}
	layout := fuzzLayout
	if len(checkpoint.state) > 10 && checkpoint.state[10] == 1 {
		layout.Partitions = 1 // as in the golden checkpoint
	}
	if m, err := OpenCold(layout, 0, checkpoint); err == nil {
		m.SetBounds(Bounds{Moves: 2, Ready: 2, ReadyBytes: 100})
		goOnWith(m, layout)
	}
	m, err := Open(layout, 0, checkpoint)
	if err != nil {
		return
	}
	open(t, m, wholeOf(t, m))
	goOnWith(m, layout)
}

// goOnWith has a machine do everything that it can. A machine from damaged bytes may give any answer.
func goOnWith(m *Machine, layout Layout) {
	m.Page(&carillon.ListRequest{}, "", 10, 100, nil)
	position := m.position
	for i, r := range fuzzRecords([]byte("\x07\x01\x08\x01\x09\x02\x0a\x02\x0b\x03\x08\x00\x08\x01\x08\x02\x08\x03")) {
		r.Seq = position + uint64(i) + 1
		e := layout.Decode(&r)
		_, _ = m.Apply(&e)
	}
	for _, job := range []string{"a", "b", "c"} {
		for _, kind := range []Kind{KindResume, KindPause, KindDelete} {
			m.position++
			_, _ = m.Apply(&Entry{Seq: m.position + 1, Kind: kind, Job: job})
		}
	}
	_, _ = m.Apply(&Entry{Seq: m.position + 1, Time: testEpoch + 1e6, Kind: KindTick, Ticks: []Tick{{To: testEpoch + 1e6, Epoch: m.epoch, Limit: 100}}})
}

// FuzzApply applies records made of arbitrary bytes to a machine, and to a replica that frees gone jobs sooner, takes
// checkpoints between records, gives some up, and goes on from others. Neither fails, both agree, and each checkpoint
// has the state as it was when it began.
func FuzzApply(f *testing.F) {
	f.Add([]byte("\x00\x10\x20\x30\x40\x50\x60\x70\x80\x90\xa0\xb0\xc0\xd0\xe0\xf0"), uint8(4))
	f.Add(bytes.Repeat([]byte("\x00\x05\x01\x06\x15\x07\x25\x0b\x35\x01\x45\x0b"), 9), uint8(9))
	f.Fuzz(func(t *testing.T, b []byte, at uint8) { applyBoth(t, fuzzRecords(b), at) })
}

// TestCheckpoints does as FuzzApply does with much longer histories.
func TestCheckpoints(t *testing.T) {
	for seed := range 60 {
		noise := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		b := make([]byte, 1200)
		_, _ = noise.Read(b)
		for i := range b { // mostly bytes that mean something
			if i%3 > 0 && b[i]%16 > 11 {
				b[i] &= 0xf7
			}
		}
		applyBoth(t, fuzzRecords(b), uint8(seed))
	}
}

func applyBoth(t *testing.T, records []Record, at uint8) {
	m, s := New(fuzzLayout, 0), saved{m: New(fuzzLayout, 0)}
	m.SetBounds(Bounds{Moves: 1 + int(at)%4, Ready: 1 + int(at)%3, ReadyBytes: 50 + int(at)%5*20})
	eager := m.bounds
	eager.Sweep = 100
	s.m.SetBounds(eager)
	rng := rand.New(rand.NewPCG(uint64(at), 0))
	var c *Checkpoint
	var began string
	for i, r := range records {
		r.Seq = uint64(i) + 1
		e := fuzzLayout.Decode(&r)
		_, err := m.Apply(&e)
		if _, other := s.m.Apply(&e); (err == nil) != (other == nil) {
			t.Fatalf("record %d: %v, %v", r.Seq, err, other)
		}
		if err != nil {
			return // under newer rules: both stop
		}
		if m.digest != s.m.digest {
			t.Fatalf("record %d: the machines differ", r.Seq)
		}
		switch dice := rng.IntN(8); {
		case c == nil && dice < 3:
			began = wholeOf(t, s.m).Dump()
			c = s.m.BeginCheckpoint()
		case c != nil && dice < 6:
			if c.Next(1 + rng.IntN(3)) {
				continue
			}
			if err := s.commit(c); err != nil {
				t.Fatal(err)
			}
			c = nil
			if got := wholeOf(t, open(t, m, s.table.View())).Dump(); got != began {
				t.Fatalf("record %d: the checkpoint has\n%s, it began at\n%s", r.Seq, got, began)
			}
		case c != nil && dice == 6:
			c.Abandon()
			c = nil
		case dice == 7 && s.m.BeginCheckpoint() != nil: // gives up the one that is being taken
			c = nil
			if err := s.checkpoint(100); err != nil {
				t.Fatal(err)
			}
			if err := s.reopen(); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(t, m, s.m)
}

// fuzzRecords makes records out of bytes: each takes one for its kind and a few for its details.
func fuzzRecords(b []byte) []Record {
	next := func() byte {
		if len(b) == 0 {
			return 0
		}
		v := b[0]
		b = b[1:]
		return v
	}
	var records []Record
	now, epoch := testEpoch, uint64(1)
	for len(b) > 0 && len(records) < 200 {
		kind, detail := next(), next()
		now += int64(detail%16) * int64(detail/16) * 20
		r := Record{Time: now * 1e6}
		if detail%8 == 7 {
			r.Header = []Field{{carillon.HeaderRequest, fmt.Sprint(next() % 4)}}
		}
		command := func(verb, body string) {
			r.Subject = fuzzLayout.LogSubject(0, verb) + "." + []string{"a", "c", "e", "g"}[detail%4]
			r.Data = []byte(body)
		}
		switch kind % 16 {
		case 0:
			c := Rules()
			c.Node, c.RetentionMS, c.CompletedMax = "n", int64(next())*100, int(next()%8)
			r.Subject, r.Data = fuzzLayout.LogSubject(0, "claim"), c.Encode()
			epoch = uint64(len(records)) + 1
		case 1, 2, 3, 4:
			r.Subject = fuzzLayout.LogSubject(AllPartitions, "tick")
			r.Data = EncodeTicks([]Tick{{
				To: now + int64(next()), Epoch: epoch, Limit: uint64(next() % 32), Acked: Acked{uint64(next()), uint64(next())},
			}})
		case 5, 6:
			schedules := []string{"@every 7ms", "@every 1s", "* * * * * *", "@in 5ms", "@in 3s", "@at 2025-01-01T00:00:00Z", "0 0 29 2 *", "@daily"}
			misfires := []string{"fire_once", "fire_all", "skip"}
			priorities := []string{"normal", "high", "low"}
			d := next()
			command("put", fmt.Sprintf(`{"schedule":%q,"misfire":%q,"priority":%q,"max_fires":%d,"expires":"%dms"}`,
				schedules[d%8], misfires[d/8%3], priorities[d/32%3], 1+next()%9, 1+int(next())*20))
		case 7:
			command("put", `{}`)
		case 8:
			command("delete", "")
		case 9:
			command("pause", "")
		case 10:
			command("resume", "")
		case 11:
			command("fire", `{"payload":1}`)
		case 14:
			r.Subject, r.Data = fuzzLayout.LogSubject(0, "import"), EncodePack(fuzzPack(next, now))
		default: // arbitrary bytes, on an arbitrary subject
			n := min(len(b), int(detail)%64)
			kinds := []string{"tick", "claim", "heal", "put.a", "delete.c", "import", "pause.*", ""}
			r.Subject, r.Data = fuzzLayout.LogSubject(0, kinds[kind/16%8]), bytes.Clone(b[:n])
			b = b[n:]
			switch kind % 16 {
			case 12:
				wrapped := Record{Seq: uint64(len(records)), Time: now * 1e6, Subject: r.Subject, Data: r.Data}
				r.Subject, r.Data = fuzzLayout.LogSubject(AllPartitions, "heal"), EncodeHeal(&wrapped)
			case 13:
				r.Data = binary.AppendUvarint(nil, uint64(detail))
			}
		}
		records = append(records, r)
	}
	return records
}

// fuzzPack makes a few jobs, valid and invalid, with and without a state from elsewhere.
func fuzzPack(next func() byte, now int64) (pack []PackedJob) {
	for range 1 + next()%4 {
		d, e := next(), next()
		job := carillon.Job{
			ID:       []string{"a", "c", "e", "g", "b"}[d%5],
			Schedule: []string{"@every 7ms", "@every 1s", "@in 5ms", "@at 2025-01-01T00:00:00Z", "nonsense", ""}[d/5%6], MaxFires: uint64(e % 4),
		}
		p := Pack(&job, nil, []string{"", "1", "2"}[e/4%3])
		if p.Paused = d >= 200; e >= 128 {
			p.State = &JobState{Version: uint64(e % 8), Accepted: now - int64(d)*10, From: now - int64(e), Last: now - int64(next()), Fires: uint64(e % 3)}
		}
		pack = append(pack, p)
	}
	return pack
}
