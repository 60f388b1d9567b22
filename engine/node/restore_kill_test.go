package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// asRestore is the environment variable that makes the test binary a restore, with restoring in JSON: what a test kills is a real process.
const asRestore = "CARILLON_TEST_RESTORE"

// restoring is what such a process restores.
type restoring struct {
	Archive, Data string
	Partitions    int
}

func runAsRestore(encoded string) int {
	var r restoring
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // the test is gone
	}()
	_, err := node.Restore(context.Background(), archive.OpenDir(nil, r.Archive), "", r.Data, node.RestoreOptions{
		Partitions: r.Partitions, Progress: func(p archive.Progress) { fmt.Println(p.Blocks) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killed runs a restore and kills it after so many blocks and some time, or lets it end before.
func (r restoring) killed(t *testing.T, blocks int, after time.Duration) {
	t.Helper()
	c := exec.Command(os.Args[0])
	var stderr logBuffer
	c.Stderr = &stderr
	in, out := startAs(t, c, nil, asRestore, r)
	defer in.Close()
	lines := bufio.NewScanner(out)
	for range blocks {
		if !lines.Scan() {
			break
		}
	}
	time.Sleep(after)    // a random moment
	_ = c.Process.Kill() // it may have ended, with success or without
	_ = c.Wait()         // says that it was killed
	if s := stderr.String(); s != "" {
		t.Fatalf("the restore says %s", s)
	}
}

// A restore that is killed at any moment leaves no data directory or a complete one, and the next restore succeeds.
func TestKillWhileRestoring(t *testing.T) {
	t.Parallel()
	target, want := saved(t, 6000)
	want = withoutPartitions(want)
	check := func(data string) {
		t.Helper()
		again := run(t, settings{Data: data}.options())
		if d := cmp.Diff(want, withoutPartitions(listJobs(t, client(t, again.NATS)))); d != "" {
			t.Fatal(d)
		}
		again.stop(t)
	}
	for _, into := range []int{0, 3} {
		one := restoring{Archive: target.String(), Data: filepath.Join(t.TempDir(), "new"), Partitions: into}
		whole, absent := 0, 0
		for i := range kills(t, 6) {
			one.killed(t, rand.N(20), rand.N(30*time.Millisecond))
			_, err := os.Stat(one.Data)
			switch {
			case errors.Is(err, os.ErrNotExist):
				absent++
				continue
			case err != nil:
				t.Fatal(err)
			}
			whole++
			if whole == 1 || i%20 == 0 {
				check(one.Data)
			}
			if err := os.RemoveAll(one.Data); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("into %d partitions: killed, it left %d whole directories, and none %d times", into, whole, absent)
		if _, err := node.Restore(t.Context(), target, "", one.Data, node.RestoreOptions{Partitions: into}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(one.Data + ".tmp"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what the killed ones left is left still: %v", err)
		}
		check(one.Data)
	}
}
