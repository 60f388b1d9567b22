package carillon

import (
	"encoding/json"
	"testing"
)

func TestParseSnapshot(t *testing.T) {
	for _, want := range []SnapshotRequest{
		{Dir: "/backup"}, {Dir: `C:\backup`}, {Bucket: "a-b_1", Recheck: true}, {Cancel: "x"},
	} {
		body, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseSnapshot(body); err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
	parse := func(b []byte) error { _, err := ParseSnapshot(b); return err }
	checkRefusals(t, parse, []refusal{
		{"", CodeInvalidJSON, ""},
		{"{}", CodeInvalidField, ""},
		{`{"recheck":true}`, CodeInvalidField, ""},
		{`{"dir":"/a","bucket":"b"}`, CodeInvalidField, ""},
		{`{"dir":"/a","cancel":"b"}`, CodeInvalidField, ""},
		{`{"dir":"a"}`, CodeInvalidField, "dir"},
		{`{"dir":"/a\u0000"}`, CodeInvalidField, "dir"},
		{`{"dir":7}`, CodeInvalidField, "dir"},
		{`{"dir":""}`, CodeInvalidField, "dir"},
		{`{"bucket":"a.b"}`, CodeInvalidField, "bucket"},
		{`{"bucket":"a","recheck":"true"}`, CodeInvalidField, "recheck"},
		{`{"directory":"/a"}`, CodeUnknownField, "directory"},
	})
}
