package snapshot

import (
	"errors"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/leaktest"
	"github.com/carillon-scheduler/carillon/wal"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("got error %v, want %v", err, class)
	}
}

func open(t testing.TB, opts wal.Options) *wal.Store {
	t.Helper()
	s, err := wal.OpenStore(opts)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}
