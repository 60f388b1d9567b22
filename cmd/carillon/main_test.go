package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carillon": main})
}

// TestScript runs testdata/script. Each script has its own directory and, where it asks for one by
// "serve", its own engine: a real process of this binary.
func TestScript(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) { // under nohup: the engines would inherit it, and a script ends one by SIGHUP
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, syscall.SIGHUP)
		t.Cleanup(func() { signal.Ignore(syscall.SIGHUP) }) // the scripts run when this function has returned
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Values[servers{}] = make(map[string]*server)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"serve":     serveCommand,
			"end":       endCommand,
			"publish":   publishCommand,
			"consumers": consumersCommand,
			"until":     untilCommand,
			"appears":   appearsCommand,
			"archive":   archiveCommand,
			"remove":    removeCommand,
		},
	})
}

// servers is the key under which a script keeps its engines, which are listed by the names of their data directories.
type servers struct{}

// server is a running "carillon serve".
type server struct {
	process *exec.Cmd
	ended   chan error
	log     string
}

// readyPattern is the one line that serve prints.
var readyPattern = regexp.MustCompile(`^carillon ready nats=(nats://127\.0\.0\.1:\d+) http=http://127\.0\.0\.1:\d+ partitions=\d+$`)

// serveCommand is "serve NAME [FLAGS]": it starts an engine on $WORK/NAME, and points NATS_URL and
// <NAME>_URL to it once it is ready.
func serveCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: serve name [flags]")
	}
	name := args[0]
	data := ts.MkAbs(name)
	s := &server{ended: make(chan error, 1), log: data + ".log"}
	flags := []string{"serve", "--data", data, "--http", "127.0.0.1:0"}
	if !slices.Contains(args, "--nats") {
		flags = append(flags, "--listen", "127.0.0.1:0")
	}
	s.process = exec.Command("carillon", append(flags, args[1:]...)...)
	s.process.Dir = ts.MkAbs(".")
	logFile, err := os.Create(s.log)
	ts.Check(err)
	defer logFile.Close()
	s.process.Stderr = logFile
	out, err := s.process.StdoutPipe()
	ts.Check(err)
	ts.Check(s.process.Start())
	ts.Value(servers{}).(map[string]*server)[name] = s
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Scan()
		ready <- lines.Text()
		for lines.Scan() { // serve must not block on a full pipe, whatever else it prints
		}
		s.ended <- s.process.Wait()
	}()
	ts.Defer(func() { s.stop(syscall.SIGKILL) })
	select {
	case line := <-ready:
		m := readyPattern.FindStringSubmatch(line)
		if m == nil {
			ts.Fatalf("serve printed %q\n%s", line, ts.ReadFile(s.log))
		}
		ts.Setenv("NATS_URL", m[1])
		ts.Setenv(name+"_URL", m[1])
	case <-time.After(time.Minute):
		ts.Fatalf("serve was not ready in a minute\n%s", ts.ReadFile(s.log))
	}
}

// stop ends the engine, by its process id, and waits until it is gone.
func (s *server) stop(signal os.Signal) error {
	if s.ended == nil {
		return nil
	}
	if err := s.process.Process.Signal(signal); err != nil {
		return err
	}
	err := <-s.ended
	s.ended = nil
	return err
}

// endCommand is "end NAME [hangup]": it sends SIGTERM, or two SIGHUPs as at the end of a terminal, after which serve must end with
// code 0.
func endCommand(ts *testscript.TestScript, neg bool, args []string) {
	hangup := len(args) == 2 && args[1] == "hangup"
	if neg || len(args) != 1 && !hangup {
		ts.Fatalf("usage: end name [hangup]")
	}
	s := ts.Value(servers{}).(map[string]*server)[args[0]]
	if s == nil {
		ts.Fatalf("no engine %s", args[0])
	}
	signal := syscall.SIGTERM
	if hangup {
		signal = syscall.SIGHUP
		ts.Check(s.process.Process.Signal(signal))
	}
	if err := s.stop(signal); err != nil {
		ts.Fatalf("serve ended with %v\n%s", err, ts.ReadFile(s.log))
	}
}

// removeCommand is "remove STREAM...": it deletes streams of the NATS that NATS_URL points to.
func removeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: remove stream...")
	}
	nc := connect(ts)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	for _, name := range args {
		ts.Check(js.DeleteStream(context.Background(), name))
	}
}

// connect connects to the script's engine.
func connect(ts *testscript.TestScript) *nats.Conn {
	nc, err := nats.Connect(ts.Getenv("NATS_URL"))
	ts.Check(err)
	return nc
}

// publishCommand is "publish SUBJECT BODY": it publishes a message as any NATS client can.
func publishCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: publish subject body")
	}
	nc := connect(ts)
	defer nc.Close()
	ts.Check(nc.Publish(args[0], []byte(args[1])))
	ts.Check(nc.FlushTimeout(10 * time.Second))
}

// consumersCommand is "consumers STREAM N": it checks that a stream has N consumers.
func consumersCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: consumers stream n")
	}
	nc := connect(ts)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, args[0])
	ts.Check(err)
	if n := s.CachedInfo().State.Consumers; strconv.Itoa(n) != args[1] {
		ts.Fatalf("%d consumers are on %s, not %s", n, args[0], args[1])
	}
}

// untilCommand is "until PATTERN ARGS": it runs carillon ARGS until its output matches.
func untilCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until pattern args")
	}
	pattern, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	var out []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		c := exec.Command("carillon", args[1:]...)
		c.Dir = ts.MkAbs(".")
		c.Env = append(os.Environ(), "NATS_URL="+ts.Getenv("NATS_URL"))
		if out, err = c.CombinedOutput(); err == nil && pattern.Match(out) {
			return
		}
	}
	ts.Fatalf("carillon %s: no %s within a minute; last %v:\n%s", strings.Join(args[1:], " "), args[0], err, out)
}

// appearsCommand is "appears FILE": it waits for a file that a background command makes.
func appearsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appears file")
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
	}
	ts.Fatalf("%s did not appear within a minute", args[0])
}

// TestScriptsAreComplete checks that each command appears in some script, except demo, which has TestDemo, and
// bench, whose package has tests of its own.
func TestScriptsAreComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^stop\b`).Match(b) {
			t.Errorf("%s would end, and pass, at the library's stop; end ends an engine", f)
		}
		fmt.Fprintln(&all, string(b))
	}
	for _, path := range commandPaths() {
		if path == "carillon demo" || strings.HasPrefix(path, "carillon bench") {
			continue
		}
		if !regexp.MustCompile(`(?m)^(! )?exec ` + path + `\b`).MatchString(all.String()) {
			t.Errorf("no script runs %q", path)
		}
	}
}
