package carillon_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const (
	module = "github.com/carillon-scheduler/carillon"
	stdlib = "std"
)

// A rule says what a room may import beyond the standard library, and what it may not import at all, with
// the reason. Test files are free.
type rule struct {
	room  string
	may   []string          // import paths; of our own module without its path
	never map[string]string // import path or its beginning → why
	pure  bool              // no clock, timer, goroutine or randomness
}

const (
	noIO    = "the room is pure: what it computes must be the same on every replica"
	noJob   = "it stores opaque bytes and never learns what a job is"
	oneWay  = "arrows go cmd → node → engine → wheel, never back"
	cliOnly = "flags and output belong to cmd"
)

var pureBans = map[string]string{
	"os": noIO, "io": noIO, "net": noIO, "log": noIO, "syscall": noIO, "math/rand": noIO, "crypto/rand": noIO, "sync": noIO,
	"context": noIO, "runtime": noIO, "golang.org/x/sys": noIO,
}

var rules = []rule{
	{room: "wheel", pure: true, never: pureBans},
	{
		room: "engine/schedule", may: []string{""}, pure: true,
		// The zone rules are read from bytes embedded in the binary, into a cache that changes no result.
		never: without(pureBans, "io", "sync"),
	},
	{
		room: "engine", pure: true, never: pureBans,
		may: []string{"", "wheel", "engine/schedule", "github.com/google/btree", "github.com/cespare/xxhash/v2"},
	},
	{
		room: "", may: []string{"github.com/nats-io/nats.go"},
		never: map[string]string{module: "the vocabulary knows nobody"},
	},
	{
		room: "wal", may: []string{"github.com/cockroachdb/pebble/v2"},
		never: map[string]string{module: noJob},
	},
	{
		room: "snapshot", may: []string{"wal", "github.com/cockroachdb/pebble/v2", "github.com/cespare/xxhash/v2"},
		never: map[string]string{module + "/engine": noJob},
	},
	{
		room: "snapshot/archive",
		may: []string{
			"wal", "snapshot", "github.com/cockroachdb/pebble/v2", "github.com/cespare/xxhash/v2", "github.com/klauspost/compress",
			"github.com/nats-io/nats.go", "github.com/nats-io/nuid",
		},
		never: map[string]string{module + "/engine": noJob},
	},
	{
		room: "engine/streams", may: []string{"github.com/nats-io/nats.go", "github.com/nats-io/nuid", "golang.org/x/sys"},
		never: map[string]string{module + "/engine": oneWay},
	},
	{
		room: "engine/cluster", may: []string{"github.com/nats-io/nats.go", "github.com/nats-io/nuid", "github.com/cespare/xxhash/v2"},
		never: map[string]string{module: "who serves a partition must not depend on what is in it"},
	},
	{
		room: "engine/servers", may: []string{"github.com/nats-io/nats.go"},
		never: map[string]string{module: "a way to servers does not depend on what is sent by it"},
	},
	{
		room: "engine/embedded",
		may: []string{
			"internal/loglimit", "internal/filelock",
			"github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nkeys", "golang.org/x/sys",
		},
	},
	{
		room: "engine/node",
		may: []string{
			"", "engine", "engine/schedule", "engine/streams", "engine/embedded", "engine/cluster", "engine/servers", "wal", "snapshot",
			"snapshot/archive", "internal/alarm", "internal/filelock", "internal/loglimit", "internal/memory",
			"github.com/nats-io/nats.go", "github.com/VictoriaMetrics/metrics", "github.com/HdrHistogram/hdrhistogram-go",
			"github.com/cockroachdb/pebble/v2", "golang.org/x/sync", "golang.org/x/sys",
		},
		never: map[string]string{"github.com/spf13": cliOnly},
	},
	{
		room: "internal/alarm", may: []string{"golang.org/x/sys"},
		never: map[string]string{module: "it wakes up whoever waits, and does not know for what"},
	},
	{
		room: "internal/filelock", may: []string{"golang.org/x/sys"},
		never: map[string]string{module: "a lock does not depend on what it is for"},
	},
	{
		room:  "internal/loglimit",
		never: map[string]string{module: "a bound of log lines does not depend on what they say"},
	},
	{
		room:  "internal/memory",
		never: map[string]string{module: "how a process uses memory does not depend on what it is for"},
	},
	{
		room: "bench/report", may: []string{"bench", "github.com/HdrHistogram/hdrhistogram-go"},
		never: map[string]string{"os": "the room draws; cmd opens files", "github.com/nats-io/nats.go": "results are files"},
	},
}

func without(bans map[string]string, names ...string) map[string]string {
	rest := make(map[string]string)
	for name, why := range bans {
		rest[name] = why
	}
	for _, name := range names {
		delete(rest, name)
	}
	return rest
}

// under tells whether an import path is, or lies below, another.
func under(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

func TestRoomsImportOnlyWhatTheyMay(t *testing.T) {
	for _, r := range rules {
		files := parseRoom(t, r.room)
		if len(files) == 0 {
			t.Errorf("room %q has no Go files; the rule is out of date", r.room)
		}
		needed := make(map[string]bool)
		for name, file := range files {
			for _, spec := range file.Imports {
				path := strings.Trim(spec.Path.Value, `"`)
				if why, banned := r.banned(path); banned {
					t.Errorf("%s imports %s: %s", name, path, why)
				}
				by, ok := r.allows(path)
				if !ok {
					t.Errorf("%s imports %s, which its room has no reason to; if it has one, say so in the rule", name, path)
				}
				needed[by] = true
			}
		}
		for _, m := range r.may {
			if !needed[m] {
				t.Errorf("room %q may import %q and does not; the rule is out of date", r.room, m)
			}
		}
	}
}

func (r rule) banned(path string) (why string, banned bool) {
	for root, why := range r.never {
		if under(path, root) {
			return why, true
		}
	}
	return "", false
}

// allows tells whether a room may import a path, and by which entry of its rule; none is needed for the standard library.
func (r rule) allows(path string) (by string, ok bool) {
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return stdlib, true
	}
	for _, m := range r.may {
		if q := qualified(m); path == q || !under(q, module) && under(path, q) {
			return m, true
		}
	}
	return "", false
}

// qualified gives the import path of a room of ours, or the path itself.
func qualified(m string) string {
	if first, _, _ := strings.Cut(m, "/"); strings.Contains(first, ".") {
		return m
	}
	if m == "" {
		return module
	}
	return module + "/" + m
}

func TestPureRoomsHaveNoClockGoroutineOrRandomness(t *testing.T) {
	clock := map[string]bool{
		"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true,
	}
	for _, r := range rules {
		if !r.pure {
			continue
		}
		for name, file := range parseRoom(t, r.room) {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s starts a goroutine: %s", name, noIO)
				case *ast.SelectStmt:
					t.Errorf("%s selects over channels, whose choice is random: %s", name, noIO)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && clock[n.Sel.Name] {
						t.Errorf("%s reads the clock with time.%s: %s", name, n.Sel.Name, noIO)
					}
				}
				return true
			})
		}
	}
}

// parseRoom parses a folder's Go files, without tests and without the folders in it.
func parseRoom(t *testing.T, room string) map[string]*ast.File {
	t.Helper()
	files := make(map[string]*ast.File)
	dir := filepath.FromSlash(room)
	if dir == "" {
		dir = "."
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
