package carillon

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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
		{`{"dir":"` + strings.Repeat("/a", maxDir/2) + `b"}`, CodeInvalidField, "dir"},
		{`{"bucket":"a.b"}`, CodeInvalidField, "bucket"},
		{`{"bucket":"a","recheck":"true"}`, CodeInvalidField, "recheck"},
		{`{"directory":"/a"}`, CodeUnknownField, "directory"},
	})
	// As JSON it would be another directory.
	if e := (&SnapshotRequest{Dir: "/a\xff"}).check(); e == nil || e.Code != CodeInvalidField || e.Field != "dir" {
		t.Errorf("a directory that is no UTF-8: %v", e)
	}
}

// A save whose context ends is given up however early that is: a cancel must not overtake what it is to cancel.
func TestSnapshotGivenUpEarly(t *testing.T) {
	nc, _ := startNATS(t)
	under := make(chan string, 1) // the save that is under way
	word := (&SnapshotReply{Phase: SnapshotCheckpoint}).AppendJSON(nil)
	var requests sync.WaitGroup
	_, err := nc.Subscribe("carillon.api.snapshot", func(m *nats.Msg) {
		if len(m.Data) == 0 {
			_ = m.Respond(nil) // the fence below
			return
		}
		requests.Go(func() { // as the service does
			s, err := ParseSnapshot(m.Data)
			if err != nil {
				t.Error(err)
			}
			if s.Cancel == "" {
				time.Sleep(50 * time.Millisecond)
				under <- m.Header.Get(HeaderRequest)
				_ = m.Respond(word)
				return
			}
			select {
			case id := <-under:
				if id != s.Cancel {
					t.Errorf("cancel of %s, not %s", s.Cancel, id)
				}
				_ = m.Respond((&SnapshotReply{Phase: SnapshotCancelled}).AppendJSON(nil))
			default:
				answer := nats.NewMsg(m.Reply)
				answer.Header.Set(headerServiceErrorCode, "404")
				answer.Data = (&Error{Code: CodeNotFound, Message: "no such snapshot is being saved"}).AppendJSON(nil)
				_ = m.RespondMsg(answer)
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if _, err := Connect(nc).SaveSnapshot(ctx, SnapshotRequest{Dir: "/a"}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// What the client sent has arrived before this request, and is then waited for.
		if _, err := nc.Request("carillon.api.snapshot", nil, time.Minute); err != nil {
			t.Fatal(err)
		}
		requests.Wait()
		if len(under) > 0 {
			t.Errorf("a save goes on whose context ended after %s", wait)
			<-under
		}
	}
}

// A service may take longer to give a save up than its user waits. Then the error says what became of the save, and nothing of the question.
func TestSnapshotGivenUpSlowly(t *testing.T) {
	nc, _ := startNATS(t)
	_, err := nc.Subscribe("carillon.api.snapshot", func(m *nats.Msg) {
		if s, err := ParseSnapshot(m.Data); err == nil && s.Cancel == "" {
			_ = m.Respond((&SnapshotReply{Phase: SnapshotCheckpoint}).AppendJSON(nil))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Connect(nc, WithTimeout(50*time.Millisecond)).SaveSnapshot(ctx, SnapshotRequest{Dir: "/a"}, func(SnapshotReply) { cancel() })
	const says = "context canceled\nthe service has not confirmed that the save is given up: it may go on for a while, or be complete"
	if !errors.Is(err, context.Canceled) || err.Error() != says {
		t.Errorf("%v", err)
	}
}
