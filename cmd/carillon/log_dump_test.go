package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
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

func TestDumpImport(t *testing.T) {
	skip := carillon.Skip
	kept := engine.Pack(&carillon.Job{ID: "a"}, nil, "")
	kept.IfAbsent = true
	kept.State = engine.StateOf(&carillon.JobState{Version: 2, Missed: &skip})
	plain := engine.Pack(&carillon.Job{ID: "a"}, nil, "")
	plain.State = engine.StateOf(&carillon.JobState{Version: 2})
	r := engine.Record{Seq: 7, Subject: "carillon.log.0.import", Data: engine.EncodePack([]engine.PackedJob{kept, plain})}
	e := engine.Layout{Prefix: "carillon", Partitions: 1}.Decode(&r)
	jobs := newRecordLine(&r, &e).Jobs
	if len(jobs) != 2 || !jobs[0].IfAbsent || jobs[0].State.Missed != "skip" || jobs[1].IfAbsent || jobs[1].State.Missed != "" {
		t.Errorf("%+v", jobs)
	}
}

// A client library takes a message with a header Status for the server's own word. Whoever may send a command may send one.
func TestDumpShowsEachCommand(t *testing.T) {
	url := startEngine(t)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	statuses := []string{"100", "404", "408", "409", "503"}
	for _, status := range statuses {
		m := nats.NewMsg("carillon.cmd.delete.of-" + status)
		m.Header.Set("Status", status)
		if _, err := nc.RequestMsg(m, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 * pulled { // more than are asked for at once
		if _, err := nc.Request(fmt.Sprintf("carillon.cmd.delete.after-%d", i), nil, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	var out, errOut bytes.Buffer
	if code := Run(t.Context(), []string{"-s", url, "log", "dump"}, strings.NewReader(""), &out, &errOut); code != exitOK {
		t.Errorf("%d, %s", code, errOut.String())
	}
	for _, status := range statuses {
		if !strings.Contains(out.String(), "of-"+status+"\n") {
			t.Errorf("the command with the status %s is not shown", status)
		}
	}
	if n := strings.Count(out.String(), "  after-"); n != 3*pulled {
		t.Errorf("%d commands after them are shown, want %d", n, 3*pulled)
	}
}
