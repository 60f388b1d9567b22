package main

import (
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
)

func TestDumpDisk(t *testing.T) {
	r := engine.Record{Seq: 7, Subject: "carillon.log.0.disk", Data: engine.Disk{Epoch: 300, Low: true}.Encode()}
	e := engine.Layout{Prefix: "carillon", Partitions: 1}.Decode(&r)
	if kind, says := kindName(&e), details(&r, &e); kind != "disk" || says != "epoch=300 low=true" {
		t.Errorf("%s %s", kind, says)
	}
	if line := newRecordLine(&r, &e); line.Kind != "disk" || line.DiskLow == nil || !*line.DiskLow || line.Base64 != "" {
		t.Errorf("%+v", line)
	}
}
