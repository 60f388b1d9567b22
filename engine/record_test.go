package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/carillon-scheduler/carillon"
)

// A record that was lost and is put back decodes as before, whatever it was: a command for a job with the name of a kind of records,
// garbage, or something that only looks like a heal record.
func TestHealed(t *testing.T) {
	layout := Layout{Prefix: "carillon", Partitions: 4}
	put := Record{Seq: 6, Time: 1e15, Subject: "carillon.log.3.put.a", Data: []byte(`{}`)}
	nested := Record{Seq: 7, Time: 2e15, Subject: "carillon.log.2.heal", Data: EncodeHeal(&put)}
	for what, r := range map[string]Record{
		"a put":                                 put,
		"a put of the job heal":                 {Subject: "carillon.log.3.put.heal", Data: []byte(`{}`)},
		"a put of the job heal, with bytes":     {Subject: "carillon.log.3.put.heal", Data: EncodeHeal(&put)},
		"garbage":                               {Subject: "carillon.log.2.tick", Data: []byte("x")},
		"a heal record that is none":            {Subject: "carillon.log.2.heal", Data: []byte("x")},
		"the same for everyone":                 {Subject: "carillon.log._.heal", Data: []byte("x")},
		"the place of a record":                 {Subject: "carillon.log._.heal"},
		"a heal record of what is to come":      {Subject: "carillon.log.2.heal", Data: EncodeHeal(&Record{Seq: 1000, Subject: put.Subject})},
		"a heal record of a partition":          {Subject: "carillon.log.2.heal", Data: EncodeHeal(&put)},
		"a heal record, put back as it is":      {Subject: "carillon.log._.heal", Data: EncodeHeal(&put)},
		"a heal record of a heal record":        {Subject: "carillon.log._.heal", Data: EncodeHeal(&nested)},
		"one of a partition that is not there":  {Subject: "carillon.log.9.heal", Data: []byte("x")},
		"a command that was stored as it came":  {Subject: "carillon.cmd.put.*", Data: []byte(`{}`)},
		"a subject of somebody else":            {Subject: "else.log.1.heal", Data: EncodeHeal(&put)},
		"a heal record, with a token too many":  {Subject: "carillon.log._.heal.x", Data: EncodeHeal(&put)},
		"a record of the log that has no place": {Subject: "carillon.log"},
	} {
		r.Seq, r.Time = 9, 3e15
		again := Record{Seq: r.Seq, Time: 4e15, Subject: layout.LogSubject(AllPartitions, "heal")}
		if _, ok := layout.Healed(&r); ok {
			again.Data = r.Data
		} else {
			again.Data = EncodeHeal(&r)
		}
		if diff := cmp.Diff(layout.Decode(&r), layout.Decode(&again), cmp.AllowUnexported(Entry{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, put back:\n%s", what, diff)
		}
	}
	twice := Record{Seq: 9, Subject: layout.LogSubject(AllPartitions, "heal"), Data: EncodeHeal(&nested)}
	if e := layout.Decode(&twice); e.Kind != KindGarbage {
		t.Errorf("a heal record in a heal record is of kind %d", e.Kind)
	}
}

// A command's request is in the header of that name, whatever others come before it.
func TestRequestOfARecord(t *testing.T) {
	r := Record{Seq: 1, Subject: "carillon.log.0.put.a", Header: []Field{{"Carillon-A", "x"}, {carillon.HeaderRequest, "r1"}}}
	if e := oneOfOne.Decode(&r); e.Request != "r1" {
		t.Errorf("the request is %q", e.Request)
	}
}
