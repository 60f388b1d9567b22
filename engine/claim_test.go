package engine

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// A state may have been claimed under newer rules. Then nothing is decided under these: a command, or what looks malformed here, stops the
// machine like a tick.
func TestRecordsUnderNewerRules(t *testing.T) {
	for kind, e := range map[string]Entry{
		"a command": {Kind: KindPut, Verb: "put", Job: "a", Body: []byte(`{"schedule":"@every 1s"}`)},
		"a disk":    {Kind: KindDisk, Disk: Disk{Epoch: 1}},
		"garbage":   {Kind: KindGarbage},
	} {
		f := newFeed(t)
		f.m.claim.Logic++
		before := f.m.position
		e.Seq, e.Time = f.seq+1, f.now
		if _, err := f.m.Apply(&e); !errors.Is(err, ErrRules) || f.m.position != before {
			t.Errorf("%s: %v, at %d instead of %d", kind, err, f.m.position, before)
		}
	}
}

// A job may have a zone that this binary's tzdata no longer has. The error names both, and is not that of a damaged checkpoint alone.
func TestZoneIsGone(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"0 0 9 * * *","zone":"Europe/Paris"}`)
	saved := decoded(bytes.ReplaceAll(encoded(wholeOf(t, f.m)), []byte("Europe/Paris"), []byte("Europe/Peris")))
	_, whole := Open(f.m.layout, 0, saved)
	m, err := OpenCold(f.m.layout, 0, saved)
	if err != nil {
		t.Fatal(err)
	}
	cold := m.loadAll()
	for _, err := range []error{whole, cold} {
		if !errors.Is(err, ErrCheckpoint) || !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), `job "a": `) ||
			!strings.Contains(err.Error(), `"Europe/Peris" is not a zone of the IANA database `+Rules().TZData) {
			t.Error(err)
		}
	}
}

// A state may come from a node with other rules. Then the first tick stops the machine, and the error says which of the two versions can
// go on.
func TestTicksUnderOtherRules(t *testing.T) {
	for _, c := range []struct {
		logic        int
		tzdata, says string
	}{
		{Logic, "1999a", "drain it with that version"},
		{Logic - 1, Rules().TZData, "drain it with that version"},
		{Logic, "2099a", `node "n1" claimed partition 0 at sequence 1 with logic 1 and tzdata 2099a; this binary has logic 1`},
	} {
		f := newFeed(t)
		f.m.claim.Logic, f.m.claim.TZData = c.logic, c.tzdata
		tick := Tick{Partition: f.m.partition, To: f.now, Epoch: f.m.epoch}
		_, err := f.m.Apply(&Entry{Seq: f.seq + 1, Time: f.now, Kind: KindTick, Ticks: []Tick{tick}})
		if !errors.Is(err, ErrRules) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("logic %d, tzdata %s: %v, which does not say %q", c.logic, c.tzdata, err, c.says)
		}
	}
}

// What no claim can say is not one: its reader would go on with rules or a retention that nobody meant.
func TestClaimValues(t *testing.T) {
	sound := Claim{Node: strings.Repeat("n", 128), Logic: 1, TZData: strings.Repeat("z", 32)}
	if c, err := DecodeClaim(sound.Encode()); err != nil || c != sound {
		t.Errorf("%+v: %+v, %v", sound, c, err)
	}
	for what, change := range map[string]func(*Claim){
		"no name":             func(c *Claim) { c.Node = "" },
		"a long name":         func(c *Claim) { c.Node += "n" },
		"no rules":            func(c *Claim) { c.Logic = 0 },
		"no zone rules":       func(c *Claim) { c.TZData = "" },
		"long zone rules":     func(c *Claim) { c.TZData += "z" },
		"a past retention":    func(c *Claim) { c.RetentionMS = -1 },
		"a count of jobs < 0": func(c *Claim) { c.CompletedMax = -1 },
	} {
		c := sound
		change(&c)
		if _, err := DecodeClaim(c.Encode()); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
