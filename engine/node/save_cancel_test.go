package node

import (
	"errors"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// Who gives a save up hears that it was too late where there is a snapshot.
func TestCancelBehindSave(t *testing.T) {
	for saved, want := range map[bool]error{false: nil, true: &carillon.Error{Code: carillon.CodeNotFound}} {
		var s saves
		s.open(t.Context())
		one, ctx, err := s.begin("r")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-ctx.Done() // it is asked for now
			s.end(one, saved)
		}()
		if err := s.cancel("r"); !errors.Is(err, want) {
			t.Errorf("saved %t: %v, want %v", saved, err, want)
		}
	}
}
