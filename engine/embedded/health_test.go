//go:build linux

package embedded

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// A stream that could not be written once stays dead, and answers nobody, until the server is
// started anew. A limit on the size of files stands in for a full disk. A stream of the same name in another account is not the engine's.
func TestWriteError(t *testing.T) {
	o := Options{Dir: t.TempDir(), Account: "A", ConfigFile: filepath.Join(t.TempDir(), "nats.conf")}
	if err := os.WriteFile(o.ConfigFile, []byte(`listen: "127.0.0.1:-1"
		accounts { A: { jetstream: enabled }, B: { jetstream: enabled, users: [{user: b, password: b}] } }`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, o)
	nc := engine(t, s)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	foreign, err := nats.Connect(s.ClientURL(), nats.UserInfo("b", "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for _, of := range []*nats.Conn{nc, foreign} {
		stream(t, of, jetstream.StreamConfig{Name: "CARILLON_LOG", Subjects: []string{"carillon.log.>"}})
	}
	publishTo := func(nc *nats.Conn, patience time.Duration) error {
		_, err := nc.Request("carillon.log.0.tick", make([]byte, 100<<10), patience)
		return err
	}
	publish := func(patience time.Duration) error { return publishTo(nc, patience) }
	const answered, unanswered = 20 * time.Second, 300 * time.Millisecond
	if err := publish(answered); err != nil {
		t.Fatal(err)
	}
	if err, ill := s.Health(), s.StreamErrors(); err != nil || len(ill) > 0 {
		t.Fatal(err, ill)
	}
	if n := testing.AllocsPerRun(10, func() { s.StreamErrors() }); n > 0 {
		t.Errorf("it looks at all streams although nothing was said: %v allocations", n)
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
	for taken := 0; s.Health() == nil; taken++ {
		if err := publishTo(foreign, unanswered); taken > 20 {
			t.Fatalf("the limit on files has no effect: %v", err)
		}
	}
	if ill := s.StreamErrors(); len(ill) > 0 {
		t.Errorf("of another account: %v", ill)
	}
	taken := 1
	natstest.Eventually(t, "the stream has an error", func() bool { // that an answer does not come soon may only mean that it is late
		if publish(unanswered) == nil {
			taken++
		}
		if taken > 20 {
			t.Fatal("the limit on files has no effect")
		}
		return len(s.StreamErrors()) > 0
	})
	for range 2 { // until it is started anew
		if why := s.StreamErrors()["CARILLON_LOG"]; !strings.Contains(why, "'A > CARILLON_LOG' write error: ") {
			t.Errorf("wrong with it is %q", why)
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
	s = start(t, o)
	nc = engine(t, s)
	if err := publish(answered); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := s.Health(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// A server that starts while the disk is nearly full, of other files or its own streams, still stores what there is room for.
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
