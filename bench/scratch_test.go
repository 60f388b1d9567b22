package bench

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/carillon-scheduler/carillon/internal/natstest"
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
	service := &engine{Service: Service{Data: in}, url: natstest.Start(t, &server.Options{}).ClientURL()}
	killed, err := startWorker([]string{os.Args[0], "work"}, service, workerStart{Bare: in})
	if err != nil {
		t.Fatal(err)
	}
	made, err := filepath.Glob(filepath.Join(in, scratchPattern, "nats"))
	if err != nil || len(made) != 1 {
		t.Fatalf("the service is in %q, %v", made, err)
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
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.stop()
	if _, err := os.Stat(made[0]); err != nil {
		t.Fatal(err) // else nothing was left
	}
	if err := next.remove(); err != nil {
		t.Fatal(err)
	}
	if next, err = makeScratch(in); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(made[0])); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the killed service left is there: %v", err)
	}
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
