package node_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
)

// The newer build of this test has the next logic, a later tzdata in which one zone is a second ahead of UTC, and a mistake in its
// machine: if a node's settings say so, its jobs of one topic are due a millisecond later. Only its state shows that.
const (
	newerLogic  = engine.Logic + 1
	newerTZData = "2099a"
	movedZone   = "Europe/Paris"
	mistaken    = "mistaken"
)

// newerBuild is the directory of that build, once it has been built. TestMain removes it.
var newerBuild struct {
	sync.Mutex
	dir string
}

// newerBinary builds it, once for all tests, from our sources, some of which an overlay replaces.
func newerBinary(t testing.TB) string {
	t.Helper()
	newerBuild.Lock()
	defer newerBuild.Unlock()
	if newerBuild.dir != "" {
		return filepath.Join(newerBuild.dir, "newer")
	}
	dir, err := os.MkdirTemp("", "carillon-newer-")
	if err != nil {
		t.Fatal(err)
	}
	newerBuild.dir = dir
	first := "\tnext := firstFire(plan, expr.Kind(), m.now, last)\n"
	replaced := make(map[string]string)
	for file, content := range map[string][]byte{
		"../machine.go":                   edited(t, "../machine.go", fmt.Sprintf("const Logic = %d\n", engine.Logic), fmt.Sprintf("const Logic = %d\n", newerLogic)),
		"../put.go":                       edited(t, "../put.go", first, first+fmt.Sprintf("\tif mistaken && want.Topic == %q {\n\t\tnext++\n\t}\n", mistaken)),
		"../mistaken.go":                  fmt.Appendf(nil, mistakenSource, asNode),
		"../schedule/tzdata/VERSION":      []byte(newerTZData),
		"../schedule/tzdata/zoneinfo.zip": newerZones(t),
	} {
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		replaced[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replaced), filepath.Base(file)))
		if err := os.WriteFile(replaced[path], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "newer")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", file, "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// mistakenSource is a file of the newer build's engine.
const mistakenSource = `package engine

import (
	"os"
	"strings"
)

var mistaken = strings.Contains(os.Getenv(%q), "\"Mistaken\":true")
`

// edited returns a source file in which one piece, which must be there once, is replaced by another.
func edited(t testing.TB, file, before, after string) []byte {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), before); n != 1 {
		t.Fatalf("%q is in %s %d times", before, file, n)
	}
	return []byte(strings.Replace(string(source), before, after, 1))
}
