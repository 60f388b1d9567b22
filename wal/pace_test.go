package wal

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A compaction rests while it may, and is told when it may not: since level 0 has grown too deep, or the store closes.
func TestCompactionsRest(t *testing.T) {
	resting, goOn := make(chan bool), make(chan struct{})
	s := open(t, Options{
		Dir: "db", FS: vfs.NewMem(), Profile: ProfileTable,
		Rest: func(behind bool) {
			resting <- behind
			<-goOn
		},
	})
	random := rand.NewChaCha8([32]byte{})
	n := 0
	ingest := func() { // over all that is there already
		tb, err := s.NewTable()
		must(t, err)
		for i := range 500 {
			value := make([]byte, 200)
			_, _ = random.Read(value) // so that blocks stay as large as they are
			must(t, tb.Set(fmt.Appendf(nil, "c%04d", i), value))
		}
		n++
		must(t, tb.Close())
		must(t, s.Ingest([]*Table{tb}))
	}
	depth := func() int { return int(s.Metrics().Levels[0].Sublevels) }
	next := func() bool {
		s.fence.pace.looked.Store(0) // as if it was looked some time ago
		goOn <- struct{}{}
		return <-resting
	}

	for n < 2 || depth() < 8 { // as many as a compaction begins with
		ingest()
	}
	if <-resting {
		t.Errorf("compactions are behind with %d sublevels", depth())
	}
	if next() {
		t.Errorf("compactions are behind with %d sublevels, after the first block", depth())
	}
	for depth() < behindSublevels {
		ingest()
	}
	if !next() {
		t.Errorf("compactions are not behind with %d sublevels", depth())
	}

	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for s.Metrics() != nil {
		continue
	}
	s.fence.pace.behind.Store(false)
	for {
		select {
		case goOn <- struct{}{}:
		case behind := <-resting:
			if !behind {
				t.Error("the store closes, and a compaction may rest")
			}
		case err := <-closed:
			must(t, err)
			return
		}
	}
}
