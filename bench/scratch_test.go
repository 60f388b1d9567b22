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

// What a run leaves that was killed is removed by the next one; what others still use, or have made otherwise, is not.
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
		t.Fatal(err) // it has started its engine
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
		t.Fatal(err) // else nothing was left
	}
	eventually(t, "what the killed run left is removed", func() bool { // once its engine has ended, too
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
