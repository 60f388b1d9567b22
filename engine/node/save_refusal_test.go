package node

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// Problems that may be over in a moment have other codes than errors of the request or of the service.
func TestSaveRefusal(t *testing.T) {
	odd := &carillon.Error{Code: carillon.CodeInvalidField, Field: "dir"}
	for _, c := range []struct {
		err  error
		want carillon.Code
	}{
		{&jetstream.APIError{Code: 400, ErrorCode: noPeers, Description: "no suitable peers for placement, peer offline"}, carillon.CodeUnavailable},
		{&jetstream.APIError{Code: 503, Description: "JetStream system temporarily unavailable"}, carillon.CodeUnavailable},
		{&jetstream.APIError{Code: 400, ErrorCode: 10074, Description: "replicas > 1 not supported in non-clustered mode"}, carillon.CodeInternal},
		{nats.ErrTimeout, carillon.CodeUnavailable},
		{archive.ErrLocked, carillon.CodeLimitExceeded},
		{odd, carillon.CodeInvalidField},
		{fs.ErrPermission, carillon.CodeInternal},
	} {
		if got := saveRefusal(fmt.Errorf("bucket saves: %w", c.err)); !errors.Is(got, &carillon.Error{Code: c.want}) {
			t.Errorf("%v is told as %v, want %s", c.err, got, c.want)
		}
	}
}

// If a save is cancelled when its snapshot is there already, the answer is that it was too late.
func TestCancelBehindSave(t *testing.T) {
	for saved, want := range map[bool]error{false: nil, true: &carillon.Error{Code: carillon.CodeNotFound}} {
		var s saving
		s.open(t.Context())
		one, ctx, err := s.begin("r")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-ctx.Done() // it has been cancelled
			one.saved = saved
			s.end(one)
		}()
		if err := s.cancel("another"); !errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) || ctx.Err() != nil {
			t.Errorf("another one is given up: %v, and so is this one: %t", err, ctx.Err() != nil)
		}
		if err := s.cancel("r"); !errors.Is(err, want) {
			t.Errorf("saved %t: %v, want %v", saved, err, want)
		}
		if err := s.cancel("r"); !errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
			t.Errorf("none is under way: %v", err)
		}
	}
}

// A snapshot that a version with newer rules saved is refused: only that version can restore it.
func TestNewerSnapshot(t *testing.T) {
	for newer := range 2 {
		m := &archive.Manifest{ID: "s", Prefix: "carillon", Versions: archive.Versions{Logic: engine.Logic + newer}}
		if _, _, err := newRestored(m); errors.Is(err, engine.ErrRules) != (newer > 0) {
			t.Errorf("logic %d: %v", m.Versions.Logic, err)
		}
	}
}
