package wal

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// compactsAt is how many sublevels make a compaction of tables due.
const compactsAt = 8

// ingest adds a table that overlaps all that are there already.
func ingest(t *testing.T, s *Store) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{byte(s.Metrics().Levels[0].Sublevels)})
	tb, err := s.NewSSTable()
	must(t, err)
	for i := range 500 {
		value := make([]byte, 200)
		_, _ = random.Read(value) // does not compress
		must(t, tb.Set(fmt.Appendf(nil, "c%04d", i), value))
	}
	must(t, tb.Close())
	must(t, s.Ingest([]*SSTable{tb}))
}

// A store that was killed with a compaction due opens before that compaction runs, and then it runs.
func TestOpensBeforeCompactions(t *testing.T) {
	mem := vfs.NewCrashableMem()
	goOn := make(chan struct{})
	o := Options{Dir: "db", FS: mem, Profile: ProfileTable, Rest: func(bool) { <-goOn }}
	s := open(t, o)
	for s.Metrics().Levels[0].Sublevels < compactsAt {
		ingest(t, s)
	}
	must(t, s.Update(func(b *pebble.Batch) error { return b.Set([]byte("c"), []byte("flushed at the start"), nil) }))
	o.FS = mem.CrashClone(vfs.CrashCloneCfg{})
	close(goOn)

	runs, mayEnd := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o.Rest = func(bool) {
		once.Do(func() { close(runs) })
		<-mayEnd
	}
	opened := make(chan error, 1)
	go func() {
		s, err := OpenStore(o)
		if err == nil {
			t.Cleanup(func() { must(t, s.Close()) })
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		must(t, err)
		<-runs
		close(mayEnd)
	case <-time.After(time.Minute):
		close(mayEnd)
		must(t, <-opened)
		t.Error("it waited for the compaction")
	}
}

// categories notes those of the tables that Pebble makes.
type categories struct {
	vfs.FS
	tables chan vfs.DiskWriteCategory
}

func (c categories) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		c.tables <- category
	}
	return c.FS.Create(name, category)
}

// Compactions rest. Flushes, for which appends may wait, only yield; the log does neither.
func TestWhoRests(t *testing.T) {
	rests := 0
	p := pace{rest: func(bool) { rests++ }}
	for c, want := range map[vfs.DiskWriteCategory]int{compacted: 1, flushed: 0} {
		if step := p.of(c); step == nil {
			t.Errorf("%s does not yield", c)
		} else if step(); rests != want {
			t.Errorf("%s rested %d times", c, rests)
		}
		rests = 0
	}
	if p.of(vfs.WriteCategoryUnspecified) != nil {
		t.Error("the log yields")
	}

	made := categories{vfs.NewMem(), make(chan vfs.DiskWriteCategory, 1)}
	s := open(t, Options{Dir: "db", FS: made})
	must(t, s.Log().Append([]Record{{1, nil}}))
	must(t, s.db.Flush())
	if c := <-made.tables; c != flushed {
		t.Errorf("a flush has the category %q", c)
	}
}

// A compaction rests while it may, and is told when it may not: because level 0 has grown too deep, or the store is closing.
func TestCompactionsRest(t *testing.T) {
	resting, goOn := make(chan bool), make(chan struct{})
	s := open(t, Options{
		Dir: "db", FS: vfs.NewMem(), Profile: ProfileTable,
		Rest: func(behind bool) {
			resting <- behind
			<-goOn
		},
	})
	depth := func() int { return int(s.Metrics().Levels[0].Sublevels) }
	next := func() bool {
		s.fence.pace.looked.Store(-int64(behindLook)) // as if the last look was long ago
		goOn <- struct{}{}
		return <-resting
	}

	for depth() < compactsAt {
		ingest(t, s)
	}
	if <-resting {
		t.Errorf("compactions are behind with %d sublevels", depth())
	}
	if next() {
		t.Errorf("compactions are behind with %d sublevels, after the first block", depth())
	}
	for depth() < behindSublevels {
		ingest(t, s)
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

// No pause in this package may last until a machine's clock that was set back has come up again: times are differences of the
// monotonic clock.
func TestNoWallClock(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	wall := regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|Round|UTC)\(`)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		code, err := os.ReadFile(name)
		must(t, err)
		if found := wall.Find(code); found != nil {
			t.Errorf("%s uses %s…)", name, found)
		}
	}
}
