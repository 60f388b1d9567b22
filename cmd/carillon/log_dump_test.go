package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/wal"
)

// writerFunc is a function as an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// An interrupted dump of a directory ends before its records do.
func TestDumpOfDirectoryIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	store, err := wal.OpenStore(wal.Options{Dir: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	record := engine.AppendRecord(nil, &engine.Record{Subject: "carillon.log.0.disk", Data: engine.Disk{Epoch: 1}.Encode()})
	if err := store.Log().Append([]wal.Record{{Seq: 1, Data: record}, {Seq: 2, Data: record}, {Seq: 3, Data: record}}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	var out, errOut bytes.Buffer
	shown := writerFunc(func(b []byte) (int, error) {
		interrupt()
		return out.Write(b)
	})
	code := Run(ctx, []string{"log", "dump", "--data", dir}, strings.NewReader(""), shown, &errOut)
	if code != exitFailure || errOut.String() != "carillon: interrupted\n" || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%d, %q, it printed\n%s", code, errOut.String(), out.String())
	}
}

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
