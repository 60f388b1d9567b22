package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
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

// A dump of a directory that is interrupted ends before it has shown all records.
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

// A record is shown as text and as JSON, including kinds and members that few logs have.
func TestDumpLines(t *testing.T) {
	at := time.Date(2027, 1, 15, 9, 0, 0, 0, time.UTC)
	ms := at.UnixMilli()
	layout := engine.Layout{Prefix: "carillon", Partitions: 8}
	restored := engine.Pack(&carillon.Job{ID: "a", Schedule: "@daily"}, nil, "")
	restored.Paused, restored.State = true, &engine.JobState{Version: 3, Accepted: ms, From: ms + 1000, Last: ms + 500, Fires: 7, Skipped: 2}
	for what, c := range map[string]struct {
		record       engine.Record
		line, inJSON string
	}{
		"disk": {
			engine.Record{Subject: "carillon.log.0.disk", Data: engine.Disk{Epoch: 300, Low: true}.Encode()},
			"0  disk     epoch=300 low=true", `"kind":"disk","partition":0,"disk_low":true}`,
		},
		"claim": {
			engine.Record{
				Subject: "carillon.log.2.claim",
				Data:    engine.Claim{Node: "n", Logic: 4, TZData: "2026a", RetentionMS: 5, CompletedMax: 6}.Encode(),
			},
			`2  claim    node="n" logic=4 tzdata=2026a`,
			`"kind":"claim","partition":2,"claim":{"node":"n","logic":4,"tzdata":"2026a","retention_ms":5,"completed_max":6}}`,
		},
		"ticks": {
			engine.Record{Subject: "carillon.log._.tick", Data: engine.EncodeTicks([]engine.Tick{
				{Partition: 1, To: ms, Epoch: 9, Limit: 10, Acked: engine.Acked{Output: 4, Seq: 5}},
				{Partition: 3, To: ms, Epoch: 8, Limit: 11, Mark: engine.Mark{Position: 6, Digest: 0xabc}},
			})},
			"_  tick     p=1 to=2027-01-15T09:00:00.000Z epoch=9 limit=10 acked=4@5; " +
				"p=3 to=2027-01-15T09:00:00.000Z epoch=8 limit=11 acked=0@0 mark=abc@6",
			`"kind":"tick","ticks":[` +
				`{"partition":1,"to":"2027-01-15T09:00:00.000Z","epoch":9,"limit":10,"acked_output":4,"acked_sequence":5},` +
				`{"partition":3,"to":"2027-01-15T09:00:00.000Z","epoch":8,"limit":11,"acked_output":0,"acked_sequence":0,` +
				`"mark_position":6,"mark_digest":"abc"}]}`,
		},
		"a restored job": {
			engine.Record{Subject: "carillon.log.1.import", Data: engine.EncodePack([]engine.PackedJob{restored})},
			`1  import   a  {"schedule":"@daily"}`,
			`"jobs":[{"job":"a","paused":true,"state":{"version":3,"accepted":"2027-01-15T09:00:00.000Z","from":"2027-01-15T09:00:01.000Z",` +
				`"last_scheduled":"2027-01-15T09:00:00.500Z","fires":7,"skipped":2},"body":"{\"schedule\":\"@daily\"}"}]}`,
		},
		"a restored job that never fired": {
			engine.Record{
				Subject: "carillon.log.1.import",
				Data:    engine.EncodePack([]engine.PackedJob{{ID: "a", State: &engine.JobState{From: 1}, Spec: restored.Spec}}),
			},
			`1  import   a  {"schedule":"@daily"}`,
			`"from":"1970-01-01T00:00:00.001Z","fires":0,"skipped":0},"body":"{\"schedule\":\"@daily\"}"}]}`,
		},
		"healed": {
			engine.Record{Subject: "carillon.log._.heal", Data: engine.EncodeHeal(&engine.Record{Seq: 5, Subject: "carillon.log.1.delete.a"})},
			"1  delete   a (healed: was 5)", `"kind":"delete","healed_sequence":5,"partition":1,"job":"a"}`,
		},
		"garbage": {
			engine.Record{Subject: "carillon.log.9.disk", Data: []byte{0xff}},
			`_  garbage  carillon.log.9.disk  "\xff"`, `"kind":"garbage","body_base64":"/w=="}`,
		},
	} {
		c.record.Seq, c.record.Time = 7, at.UnixNano()
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			d := &dumper{app: &app{stdout: &out, json: asJSON}, layout: layout, partition: allPartitions}
			if err := d.show(&c.record); err != nil {
				t.Fatal(err)
			}
			want := "7  2027-01-15T09:00:00.000Z  " + c.line
			if asJSON {
				want = c.inJSON
			}
			if got := strings.TrimSuffix(out.String(), "\n"); !strings.HasSuffix(got, want) || !asJSON && got != want {
				t.Errorf("%s is shown as\n%s, want\n%s", what, got, want)
			}
		}
	}
	// A record of ticks is shown for each partition that it names, and for no other.
	ticks := engine.Record{Seq: 1, Subject: "carillon.log._.tick", Data: engine.EncodeTicks([]engine.Tick{{Partition: 1}, {Partition: 3}})}
	for partition, shown := range map[int]bool{0: false, 1: true, 3: true} {
		var out bytes.Buffer
		d := &dumper{app: &app{stdout: &out}, layout: layout, partition: partition}
		if err := d.show(&ticks); err != nil || (out.Len() > 0) != shown {
			t.Errorf("of partition %d %q is shown, %v", partition, out.String(), err)
		}
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

// A client library takes a message with a header Status for one that the server itself made. A client can put this header on a
// command, and log dump must show that command, too.
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
	for i := range 3 * pulled { // more than one pull returns
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

// nats-server stores and sends a command with a carriage return in its subject, which ends the client library's connection.
func TestDumpShowsSubjectsThatBreak(t *testing.T) {
	url := startEngine(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	broken := strings.Repeat("PUB carillon.cmd.delete.a\rb 2\r\n{}\r\n", pulled+10)
	frames := `CONNECT {"verbose":false,"pedantic":false}` + "\r\n" + "PUB carillon.cmd.delete.first 0\r\n\r\n" + broken +
		strings.Repeat("PUB carillon.cmd.delete.more 0\r\n\r\n", 3*pulled) + broken + "PING\r\n"
	if _, err := io.WriteString(conn, frames); err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "PONG\r\n" { // the server has read all
			break
		}
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("carillon.cmd.delete.last", nil, 10*time.Second); err != nil { // and has stored it when this is stored
		t.Fatal(err)
	}
	code, out, errOut := run(t, "-s", url, "log", "dump")
	if code != exitOK {
		t.Errorf("%d, %s", code, errOut)
	}
	out = strings.ReplaceAll(out, "  ab  ", `  "a\rb"  `) // the server drops a carriage return if it reads the line in two pieces
	for job, want := range map[string]int{"first\n": 1, `"a\rb"  {}`: 2 * (pulled + 10), "more\n": 3 * pulled, "last\n": 1} {
		if n := strings.Count(out, "  delete   "+job); n != want {
			t.Errorf("%d commands for %s are shown, want %d", n, job, want)
		}
	}
}
