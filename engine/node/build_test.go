package node_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// otherBinary builds this test with some files in the places of others, by path from here. Our sources know nothing of it.
func otherBinary(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	replaced := make(map[string]string)
	for file, content := range files {
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
	file, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "other")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", file, "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// edited is a source file with one piece of it, which is there once, replaced by another.
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
