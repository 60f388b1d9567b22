//go:build linux

package embedded

import (
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// A stream that could not be written once stays dead, without an answer to anyone, until the server is
// started anew. A limit on the size of files stands for the full disk.
func TestWriteError(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	nc := engine(t, s)
	stream(t, nc, jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	publish := func(patience time.Duration) error {
		_, err := nc.Request("carillon.log.0.tick", make([]byte, 100<<10), patience)
		return err
	}
	const answered, unanswered = 20 * time.Second, 300 * time.Millisecond
	if err := publish(answered); err != nil {
		t.Fatal(err)
	}
	if err := s.Health(); err != nil {
		t.Fatal(err)
	}

	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var whole unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &whole); err != nil {
		t.Fatal(err)
	}
	small := whole
	small.Cur = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	roomy := func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &whole); err != nil {
			t.Fatal(err)
		}
	}
	defer roomy()
	taken := 1
	for end := time.Now().Add(time.Minute); s.Health() == nil; { // an answer that does not come soon may be late alone
		if publish(unanswered) == nil {
			taken++
		}
		if taken > 20 {
			t.Fatal("the limit on files has no effect")
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is said of it after %d messages", taken)
		}
	}
	if err := s.Health(); err == nil || !strings.Contains(err.Error(), "CARILLON_LOG") {
		t.Errorf("health is %v", err)
	}
	roomy()
	if publish(unanswered) == nil {
		t.Error("the stream came back by itself: no restart is needed")
	}
	nc.Close()
	s.Shutdown()
	s = start(t, Options{Dir: dir})
	nc = engine(t, s)
	if err := publish(answered); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := s.Health(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// A server that starts while others, or its own streams, have nearly filled the disk stores what there is room for.
func TestStartOnFullDisk(t *testing.T) {
	disk, ok := smalldisk.Mount(t, 64)
	if !ok {
		return
	}
	dir := filepath.Join(disk, "nats")
	publish := func(nc *nats.Conn) {
		t.Helper()
		m, err := nc.Request("carillon.log.0.tick", make([]byte, 1<<20-1<<10), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Data), `"seq":`) || strings.Contains(string(m.Data), "error") {
			t.Fatalf("the answer is %s", m.Data)
		}
	}
	s := start(t, Options{Dir: dir})
	nc := engine(t, s)
	stream(t, nc, jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}, MaxBytes: 32 << 20})
	for range 20 {
		publish(nc)
	}
	s.Shutdown()
	smalldisk.Fill(t, disk, 4<<20)
	publish(engine(t, start(t, Options{Dir: dir})))
}
