package bench

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What a killed run leaves is removed by the next run. What another run still uses, or no run has made, is not.
func TestKilledRun(t *testing.T) {
	t.Parallel()
	in := t.TempDir()
	foreign := filepath.Join(in, "carillon-bench-of-somebody")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	live, err := makeScratch(in)
	if err != nil {
		t.Fatal(err)
	}
	killed := exec.Command(os.Args[0], "bench", in)
	out, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err) // otherwise it has started its engine
	}
	made, err := filepath.Glob(filepath.Join(in, scratchPrefix+"*", "data"))
	if err != nil || len(made) != 1 {
		t.Fatalf("the other run is in %q, %v", made, err)
	}
	next, err := makeScratch(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{foreign, live.dir, made[0]} {
		if _, err := os.Stat(dir); err != nil {
			t.Fatalf("what is in use was removed: %v", err)
		}
	}
	finish(killed)
	if _, err := os.Stat(made[0]); err != nil {
		t.Fatal(err) // nothing was left to remove
	}
	eventually(t, "what the killed run left is removed", func() bool { // its engine may write for a moment after the kill
		if err := next.remove(); err != nil {
			t.Fatal(err)
		}
		if next, err = makeScratch(in); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(filepath.Dir(made[0]))
		return errors.Is(err, fs.ErrNotExist)
	})
	for _, dir := range []string{foreign, live.dir} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("what is in use was removed: %v", err)
		}
	}
	for _, s := range []*scratch{live, next} {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	}
}

// A run removes the directories above its own that it has made, unless somebody else has put something there.
func TestScratchLeavesNothing(t *testing.T) {
	there := t.TempDir()
	t.Chdir(there)
	in := filepath.Join("tmp", "of", "the", "user")
	first, err := makeScratch(in)
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(first.dir) { // a snapshot's directory must be
		t.Errorf("a run is in %s", first.dir)
	}
	second, err := makeScratch(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first.dir); err != nil {
		t.Fatalf("what is in use was removed: %v", err)
	}
	foreign := filepath.Join(there, "tmp", "letter.txt")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := first.remove(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(there, "tmp"))
	if err != nil || len(left) != 1 || left[0].Name() != "letter.txt" {
		t.Errorf("beside another's file %v is left, %v", left, err)
	}
	if _, err := makeScratch(filepath.Join(foreign, "in")); err == nil {
		t.Error("a run has its directory in a file")
	}
}
