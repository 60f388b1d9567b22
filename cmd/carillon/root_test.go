package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	textunicode "golang.org/x/text/encoding/unicode"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/bench"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/filelock"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// commandPaths lists the commands that are not groups.
func commandPaths() []string {
	var paths []string
	walk(newRootCommand(&app{}), func(c *cobra.Command) {
		if !c.HasSubCommands() {
			paths = append(paths, c.CommandPath())
		}
	})
	return paths
}

// run runs a command line without input and returns what it printed.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Run(t.Context(), args, strings.NewReader(""), &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	walk(newRootCommand(&app{}), func(c *cobra.Command) {
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		code, out, errOut := run(t, args...)
		if code != exitOK || errOut != "" || !strings.Contains(out, "Usage:\n  carillon") {
			t.Errorf("%v: code %d, stdout %q, stderr %q", args, code, out, errOut)
		}
		if !c.HasSubCommands() && !c.Hidden && !strings.Contains(out, "Examples:\n  carillon ") {
			t.Errorf("%v shows no example:\n%s", args, out)
		}
	})
}

// Help lists the flags of the root that a command takes, and no others.
func TestHelpListsWhatACommandTakes(t *testing.T) {
	all := append([]string{"json"}, connectionFlags...)
	for command, takes := range map[string][]string{
		"status":         all,
		"bench lateness": all,
		"serve":          slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "server" || name == "timeout" }),
		"version":        {"json"},
		"bench recovery": {"json"},
		"demo":           nil,
	} {
		for _, args := range []string{command + " --help", "help " + command} {
			_, out, _ := run(t, strings.Fields(args)...)
			for _, name := range all {
				listed := regexp.MustCompile(`(?m)^ +(-s, )?--` + name + `\b`).MatchString(out)
				if listed != slices.Contains(takes, name) {
					t.Errorf("%s lists --%s: %t", args, name, listed)
				}
			}
		}
	}
}

// Each line of each example must be a command line that the command tree accepts.
func TestExamplesParse(t *testing.T) {
	examples := 0
	walk(newRootCommand(&app{}), func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			paths := parseLine(t, line)
			examples += len(paths)
			// The examples of a group are about its members.
			if !c.HasSubCommands() && !slices.Contains(paths, c.CommandPath()) {
				t.Errorf("the example %q does not run %s", line, c.CommandPath())
			}
		}
	})
	if examples < 40 {
		t.Errorf("%d examples found", examples)
	}
}

// What an example of a worker runs by a shell succeeds in an empty directory, after the commands before it: a failure may give triggers up.
func TestWorkExamplesRun(t *testing.T) {
	for line := range strings.Lines(newWorkCommand(&app{}).Example) {
		dir := t.TempDir()
		for _, words := range shellCommands(line) {
			if words[0] == "carillon" {
				shell := slices.Index(words, "sh")
				if shell < 0 {
					continue
				}
				words = words[shell:]
			}
			c := exec.Command(words[0], words[1:]...)
			c.Dir, c.Env = dir, append(os.Environ(), "CARILLON_JOB=a")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %q: %v, %s", line, words, err, out)
			}
		}
	}
}

// So must each example in docs/cli.md, which must show or mention each command, except those of bench.
func TestReferenceParses(t *testing.T) {
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for line := range strings.Lines(string(b)) {
		if line, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(line, "carillon ready ") && !strings.HasPrefix(line, "carillon: ") {
			paths = append(paths, parseLine(t, strings.TrimPrefix(line, "$ "))...)
		}
	}
	for _, path := range commandPaths() {
		name := strings.TrimPrefix(path, "carillon ")
		if !slices.Contains(paths, path) && !strings.Contains(string(b), "`"+path) && !strings.HasPrefix(name, "bench ") {
			t.Errorf("docs/cli.md has no example of %s", path)
		}
	}
}

// So must each command line that stands by itself in the other documents.
func TestDocumentsParse(t *testing.T) {
	commands := 0
	for _, name := range []string{"README.md", "docs/operations.md", "docs/benchmarks.md"} {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			line, run := strings.CutPrefix(line, "bin/")
			if line, shown := strings.CutPrefix(line, "    "); (run || shown) && strings.HasPrefix(line, "carillon ") {
				commands += len(parseLine(t, line))
			}
		}
	}
	if commands < 30 {
		t.Errorf("%d commands were found", commands)
	}
}

// parseLine has the command tree parse each carillon command in a line of shell, and returns the paths of these commands.
func parseLine(t *testing.T, line string) (paths []string) {
	t.Helper()
	for _, args := range shellCommands(line) {
		if args[0] != "carillon" {
			continue
		}
		found, rest, err := newRootCommand(&app{}).Traverse(args[1:])
		if err == nil {
			err = found.ParseFlags(rest)
		}
		if err == nil {
			err = found.ValidateArgs(found.Flags().Args())
		}
		if err == nil {
			err = found.ValidateFlagGroups()
		}
		if err != nil {
			t.Errorf("the example %q: %v", line, err)
		}
		paths = append(paths, found.CommandPath())
	}
	return paths
}

// shellCommands splits a line into commands and their words, without comments and redirections.
func shellCommands(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	var quote rune
	in, redirected := false, false
	endWord := func() {
		if in && !redirected {
			words = append(words, word.String())
		}
		if in {
			redirected = false
		}
		word.Reset()
		in = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ' || r == '\n':
			endWord()
		case r == '|' || r == ';' || r == '&':
			endCommand()
		case r == '>' || r == '<':
			endWord()
			redirected = true
		case r == '#' && !in:
			endCommand()
			return commands
		default:
			word.WriteRune(r)
			in = true
		}
	}
	endCommand()
	return commands
}

// startEngine runs an engine in this process and returns the URL of its server.
func startEngine(t *testing.T) string {
	t.Helper()
	data := t.TempDir() // made before the cleanup below, so that it is removed after the engine has ended
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, strings.NewReader(""), w, &log)
		w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("serve ended with %d:\n%s", code, log.String())
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	m := readyPattern.FindStringSubmatch(strings.TrimSpace(line))
	if err != nil || m == nil {
		t.Fatalf("serve printed %q (%v)", line, err)
	}
	return m[1]
}

// startWatch runs a watch until ctx ends. It returns the lines that it prints, its exit code, and its standard error, which is complete
// when the exit code is there.
func startWatch(ctx context.Context, url string) (lines *bufio.Scanner, ended <-chan int, errOut *bytes.Buffer) {
	r, w := io.Pipe()
	code := make(chan int, 1)
	errOut = new(bytes.Buffer)
	go func() {
		code <- Run(ctx, []string{"watch", "-s", url, "--events"}, strings.NewReader(""), w, errOut)
		w.Close()
	}()
	return bufio.NewScanner(r), code, errOut
}

// TestRefusedAtOnce: wrong values, and flags that do not go together, are refused before the service is asked.
func TestRefusedAtOnce(t *testing.T) {
	t.Setenv("NATS_URL", "nats://127.0.0.1:1")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"job put a -f FILE --label x=1":                                    "cannot stand beside it",
		"job put a -f FILE --payload 1":                                    "cannot stand beside it",
		"job put a --owner \xff":                                           "is not UTF-8",
		"job put a --label x=\xff":                                         "is not UTF-8",
		"log dump --partition -2":                                          "--partition is -2",
		"snapshot prune DIR --keep -1":                                     "--keep is -1, must be 1 or more",
		"snapshot prune DIR --older-than -1h":                              "--older-than is -1h0m0s, must not be negative",
		"snapshot restore DIR --data new --partitions -1":                  "--partitions is -1, must be 1 to 1024",
		"snapshot restore DIR --data new --log DIR":                        "--to-time and --log go together",
		"snapshot restore DIR -s x --partitions 4":                         "go with --data",
		"snapshot restore DIR -s x --to-time TIME --log L":                 "go with --data",
		"snapshot restore DIR -s x --to-time 0001-01-01T00:00:00Z --log L": "go with --data",
		"snapshot restore DIR --data new -s x":                             "carillon: --server has no meaning with --data: nothing connects to NATS then (see ",
		"snapshot save DIR --data old --creds x":                           "carillon: --creds has no meaning with --data: ",
		"log dump --data old --server x":                                   "carillon: --server has no meaning with --data: ",
		"bench lateness --data new --server x":                             "carillon: --data is for an engine that is started, --server ",
		"bench dispatch --data new --server x":                             "--data is for an engine that is started, --server ",
		"bench burst --data new --server x":                                "--data is for an engine that is started, --server ",
		"bench churn --data new --server x":                                "--data is for an engine that is started, --server ",
		"bench soak --data new --server x":                                 "--data is for an engine that is started, --server ",
		"snapshot restore DIR --data new --to-time TIME --log L --owner a": "--to-time restores all jobs",
		"status --watch --every 0s":                                        "--every is 0s",
		"work a b --name n -- sh":                                          "give one topic",
		"work --name n -- sh":                                              "give one topic",
		"work a --name n --prepare -- sh":                                  "--prepare runs no command",
		"work a --name n --":                                               "there is no command after --",
		"work a --name n --prepare --":                                     "there is no command after --",
		"work a --name n --json -- sh":                                     "--json is for triggers that are printed",

		"serve --data nowhere --http nowhere":                             `"nowhere" for "--http" flag: must be host:port, such as 127.0.0.1:4222, with a port from 0 to 65535, or off (see `,
		"serve --data nowhere --http=":                                    `"" for "--http" flag: must be host:port`,
		"serve --data nowhere --listen 127.0.0.1":                         `"127.0.0.1" for "--listen" flag: must be host:port, such as 127.0.0.1:4222, with a port from 0 to 65535 (see `,
		"serve --data nowhere --listen off":                               `"off" for "--listen" flag: must be host:port`,
		"serve --data nowhere --listen 127.0.0.1:x":                       "--listen",
		"serve --data nowhere --listen 127.0.0.1:-1":                      "--listen",
		"demo --data nowhere --listen 127.0.0.1:65536":                    `"127.0.0.1:65536" for "--listen" flag: must be host:port`,
		"demo --data nowhere --http ::1:8080":                             `"::1:8080" for "--http" flag: must be host:port`,
		"status --timeout 5":                                              `carillon: --timeout is "5", must be a duration with its unit, such as 250ms, 90s or 1h30m (see `,
		"work t --name n --grace 1d":                                      `--grace is "1d", must be a duration with its unit`,
		"serve --data nowhere --keep-log=":                                `--keep-log is "", must be a duration with its unit`,
		"serve --data nowhere --weight 99999999999999999999":              `--weight is "99999999999999999999", must be a whole number of 18 digits at most (see `,
		"serve --data nowhere --checkpoint-records -99999999999999999999": `must be a whole number, not negative`,
		"preview @daily --count NaN":                                      `--count is "NaN", must be a whole number (see `,
		"job put a --max-fires 10k":                                       `--max-fires is "10k", must be a whole number (see `,
		"work t --name n --concurrency -1":                                "carillon: --concurrency is -1; expected 1 to 100000 (see ",
		"work t --name n --max-attempts -1":                               "--max-attempts is -1; expected 1 or more",
		"work t --name n --ack-wait 1ms":                                  "--ack-wait is 1ms; expected 100ms or more",
		"work t --name n --grace -1s -- sh":                               "--grace is -1s; ",
		"work t --name n --partitions 1025 -- sh":                         "--partitions is 1025; expected 1 to 1024",
		"work t --name a.b --prepare":                                     `--name "a.b" is no name of a consumer`,
		"work a..b --name n":                                              `carillon: invalid_topic: topic: "a..b" has an empty token`,
		"topic create t --max-age 1ms":                                    "carillon: --max-age is 1ms; expected a second or more (see ",
		"topic t --max-bytes 512":                                         "--max-bytes is 512; expected 1048576 or more",
		"topic t --replicas 6":                                            "--replicas is 6; expected 1 to 5",
		"topic create a..b":                                               "carillon: invalid_topic: topic: ",
		"topic delete a..b":                                               "carillon: invalid_topic: topic: ",
		"watch --topic a..b":                                              "carillon: invalid_topic: topic: ",
		"status --prefix a..b":                                            `carillon: --prefix "a..b" is no prefix: `,
		"serve --data nowhere --prefix a..b":                              `carillon: --prefix "a..b" is no prefix: `,
		"serve --data nowhere --follow some":                              `carillon: --follow is "some", must be all or placed (see `,
		"serve --data nowhere --follow=":                                  `--follow is "", must be all or placed`,
		"serve --data nowhere --name a,b":                                 `the name "a,b" must be up to 128 letters, digits, -, _ and dots (see `,
		"serve --data nowhere --nats b --name a.b":                        `the name "a.b" must be up to 64 letters, digits, - and _ (see `,
		"serve --data nowhere --zone a":                                   "a weight, a zone and standbys are for nodes that share an external NATS (see ",
		"serve --data nowhere --nats a,nats://:x":                         `carillon: --nats has "nats://:x", must be URLs such as nats://127.0.0.1:4222, separated by commas (see `,
		"serve --data nowhere --nats b:65536":                             `--nats has "b:65536"`,
		"serve --data nowhere --nats b --listen 127.0.0.1:0":              "carillon: --listen is for the embedded server; with --nats there is none (see ",
		"serve --data nowhere --nats b --nats-account A":                  "carillon: --nats-account is for the embedded server; with --nats there is none (see ",
		"serve --data nowhere --nats ,":                                   `--nats is ",", which names no server`,
		"bench lateness --nats nats://":                                   `--nats has "nats://", must be URLs`,
		"bench lateness --nats=":                                          `"--nats" flag: is empty`,
		"status -s ,":                                                     `carillon: the server (--server, NATS_URL) is ",", which names no server (see `,
		"snapshot prune DIR --drop x --drop=":                             `"--drop" flag: is empty`,
		"snapshot verify DIR --id=":                                       `"--id" flag: is empty`,
		"snapshot verify DIR --bucket b":                                  "give a directory or --bucket, not both (see ",
		"snapshot verify":                                                 "give a directory or --bucket (see ",
		"status --timeout 0":                                              "carillon: --timeout is 0, must be more than 0 (see ",
		"--timeout 0s job list":                                           "--timeout is 0, must be more than 0",
		"bench scale --midnight 0":                                        "--midnight is 0, must be 1 or more, or -1 for none",
		"bench scale --midnight -2":                                       "--midnight is -2, must be 1 or more",
		"bench burst --partitions 0":                                      "--partitions is 0, must be more than 0",
		"bench dispatch --cron-rate 0":                                    "--cron-rate is 0, must be more than 0",
		"bench burst --side -1":                                           "carillon: --side is -1, must be 1 to 10,000 triggers a second (see ",
		"bench burst --payload 1":                                         "carillon: --payload is 1, must be 2 to ",
		"bench dispatch --cron-rate -1":                                   "carillon: --cron-rate is -1, must be ",
		"bench soak --kill-every -1s":                                     "carillon: --kill-every -1s is negative",
		"bench recovery --jobs 10 --rate 100":                             "carillon: bench: 10 jobs cannot make 100 triggers a second",
		"bench idle --data=":                                              `"--data" flag: is empty`,
		"bench lateness --raw=":                                           `"--raw" flag: is empty`,
		"bench report FILE --output=":                                     `"-o, --output" flag: is empty`,
		"bench report FILE --pictures=":                                   `"--pictures" flag: is empty`,
		"job put a --payload-file=":                                       `"--payload-file" flag: is empty`,
		"serve --data=":                                                   `"--data" flag: is empty`,
		"serve --data nowhere --name=":                                    `"--name" flag: is empty`,
		"serve --data nowhere --nats b --zone=":                           `"--zone" flag: is empty`,
	} {
		args := strings.Fields(strings.NewReplacer("FILE", file, "DIR", filepath.Dir(file), "TIME", "2027-01-15T09:00:00Z").Replace(line))
		if code, out, errOut := run(t, args...); code != exitUsage || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%s: %d, %q, %q, want %q", line, code, out, errOut, says)
		}
	}
	for _, timeout := range []string{"5", "-1s", "soon"} {
		t.Setenv("NATS_TIMEOUT", timeout)
		want := fmt.Sprintf("carillon: NATS_TIMEOUT is %q, must be a duration with its unit, ", timeout)
		if code, _, errOut := run(t, "status"); code != exitUsage || !strings.HasPrefix(errOut, want) {
			t.Errorf("%d, %s", code, errOut)
		}
	}
	t.Setenv("NATS_TIMEOUT", "")
	if code, _, errOut := run(t, "snapshot", "list", file); code != exitFailure || !strings.Contains(errOut, file+" is no directory") {
		t.Errorf("%d, %s", code, errOut)
	}
	for _, line := range []string{
		"status --creds MISSING", "status --nkey MISSING", "status --tlsca MISSING", "serve --data nowhere --nats a --creds MISSING",
		"status --tlscert MISSING --tlskey FILE", "serve --data nowhere --nats a --tlskey MISSING --tlscert FILE",
	} {
		missing := filepath.Join(filepath.Dir(file), "missing")
		args := strings.Fields(strings.NewReplacer("MISSING", missing, "FILE", file).Replace(line))
		begins, ends := "carillon: "+args[slices.Index(args, missing)-1]+" (NATS_", "): open "+missing+": no such file or directory\n"
		if code, _, errOut := run(t, args...); code != exitFailure || !strings.HasPrefix(errOut, begins) || !strings.HasSuffix(errOut, ends) {
			t.Errorf("%s: %d, %q, want %s…%s", line, code, errOut, begins, ends)
		}
	}
	t.Setenv("CARILLON_PREFIX", "a b")
	if code, _, errOut := run(t, "status"); code != exitUsage || !strings.HasPrefix(errOut, `carillon: CARILLON_PREFIX: invalid_field: prefix: "a b" is no prefix`) {
		t.Errorf("%d, %s", code, errOut)
	}
	t.Setenv("CARILLON_PREFIX", "")
	if err := os.Truncate(file, maxLine+1); err != nil {
		t.Fatal(err)
	}
	code, _, errOut := run(t, "job", "put", "a", "-f", file)
	if code != exitFailure || !strings.HasPrefix(errOut, "carillon: payload_too_large: ") {
		t.Errorf("%d, %s", code, errOut)
	}
}

// A command for a selection fails if not all selected jobs are known to be changed, and prints the counts.
func TestSelectionFails(t *testing.T) {
	url := natstest.Start(t, &natsserver.Options{}).ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("carillon.api.pause", func(m *nats.Msg) {
		if err := m.Respond((&carillon.SelectionReply{Matched: 5, Changed: 2, Unchanged: 1, Failed: 2}).AppendJSON(nil)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := run(t, "-s", url, "job", "pause", "--owner", "acme")
	const want = "5 selected, 2 paused, 1 were paused or gone already, 2 failed\n"
	if code != exitFailure || out != want || !strings.HasPrefix(errOut, "carillon: unavailable: of 2 jobs ") {
		t.Errorf("%d, %s%s", code, out, errOut)
	}
}

// TestPrintResult: a bench's result is printed even if the bench ended early, and a missed target or a failed check is an error.
func TestPrintResult(t *testing.T) {
	figures := bench.Figures{{Name: "a_ms", Value: 1}}
	early := errors.New("ended early")
	for what, c := range map[string]struct {
		r         bench.Result
		err, want error
		shown     bool
	}{
		"it was shown":    {r: bench.Result{Figures: figures}, shown: true},
		"a missed target": {r: bench.Result{Figures: figures, Targets: []bench.Target{{Figure: "a_ms"}}}, want: errMissed, shown: true},
		"a failed check":  {r: bench.Result{Figures: figures, Checks: &bench.Checks{Missing: 1}}, want: errMissed, shown: true},
		"ended early":     {r: bench.Result{Figures: figures}, err: early, want: early, shown: true},
		"ended at once":   {err: early, want: early},
	} {
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			a := &app{stdout: &out, json: asJSON}
			if err := a.printResult(c.r, c.err); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s: %v", what, err)
			}
			got := out.String()
			if strings.Contains(got, "a_ms") != c.shown || strings.HasPrefix(got, "{") != (asJSON && c.shown) {
				t.Errorf("%s: it shows %q", what, got)
			}
			if asJSON && c.shown && strings.Contains(got, "ended early") != (c.err != nil) {
				t.Errorf("%s: it shows %q", what, got)
			}

		}
	}
}

// TestWatchEvents: watch shows the rejections and the trigger that are made after it has printed its heading.
func TestWatchEvents(t *testing.T) {
	url := startEngine(t)
	ctx, cancel := context.WithCancel(t.Context())
	lines, ended, errOut := startWatch(ctx, url)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("watch ended: %v, %s", lines.Err(), errOut.String())
		}
		return lines.Text()
	}
	if head := next(); !strings.HasPrefix(head, "due") {
		t.Fatalf("the first line is %q", head)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish("carillon.cmd.put.broken", []byte(`{"schedule":"@every 0s"}`)); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.Contains(got, "rejected  broken") || !strings.Contains(got, "put: invalid_schedule: schedule: ") {
		t.Errorf("the rejection is shown as %q", got)
	}
	if err := nc.Publish("carillon.cmd.put.broken", []byte(`{"\u001b[2J":1}`)); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.Contains(got, "rejected  broken") || strings.Contains(got, "\x1b") {
		t.Errorf("the rejection of a field that a stranger made up is shown as %q", got)
	}
	if _, err := carillon.Connect(nc).Put(t.Context(), carillon.Job{ID: "bell", Payload: []byte("ding\x1b[2J")}); err != nil {
		t.Fatal(err)
	}
	if _, err := carillon.Connect(nc).Fire(t.Context(), "bell"); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.Contains(got, " ms  bell") || !strings.HasSuffix(got, `"ding\x1b[2J"`) {
		t.Errorf("the trigger is shown as %q", got)
	}
	cancel()
	if lines.Scan() {
		t.Errorf("after its end watch printed %q", lines.Text())
	}
	if code := <-ended; code != exitOK || errOut.Len() > 0 {
		t.Errorf("watch ended with %d, %q", code, errOut.String())
	}
}

// TestStatusWatch: status --watch looks again and again, shows rates from the second look on, and ends when it is interrupted.
func TestStatusWatch(t *testing.T) {
	url := startEngine(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"status", "-s", url, "--watch", "--every", "10ms"}, strings.NewReader(""), w, &errOut)
		w.Close()
	}()
	looks := 0
	for lines := bufio.NewScanner(r); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "PARTITION" {
			continue
		}
		if looks++; slices.Contains(words, "OUTPUTS/S") != (looks > 1) {
			t.Errorf("look %d shows %v", looks, words)
		}
		if looks == 3 {
			cancel()
		}
	}
	if code := <-ended; code != exitOK || errOut.Len() > 0 || looks < 3 {
		t.Errorf("after %d looks it ended with %d, %q", looks, code, errOut.String())
	}
}

// TestStatusTells: status shows what is wrong, and a rate only if both looks have what it takes to compute it.
func TestStatusTells(t *testing.T) {
	at := time.Date(2027, 1, 15, 9, 0, 0, 0, time.UTC)
	before := carillon.StatusReply{
		Time: at, Nodes: []carillon.NodeStatus{{Node: "a", Position: 1000}},
		Partitions: []carillon.PartitionStatus{{Outputs: 500}, {Partition: 1, Outputs: 500}},
	}
	r := carillon.StatusReply{
		Node: "a", Time: at.Add(2 * time.Second), Problems: []string{"one", "two"},
		Nodes: []carillon.NodeStatus{
			{Node: "a", State: carillon.NodeLive, Position: 1100, ClockOffset: clockWarning},
			{Node: "b", State: carillon.NodeSilent, Position: 1000, ClockOffset: -1500},
		},
		Partitions: []carillon.PartitionStatus{
			{Outputs: 520, Skipped: map[string]uint64{"misfire": 3, "until": 4}},
			{Partition: 1, Outputs: 400, Stopped: "lost"},
			{Partition: 2, Outputs: 60},
		},
	}
	for _, c := range []struct {
		before *carillon.StatusReply
		lines  []string
	}{
		{nil, []string{
			"node a, not ready: one; two", "a live - 0 0 0 1100 0 - 100 ms", "b silent - 0 0 0 1000 0 - -1500 ms",
			"warning: the clock of b is 1.5 s off that of the streams; see to the time synchronization of it and of the nats-servers",
			"0 - - 0 0 0 0 0 520 0 0 0.0 ms 0 7 -", "1 - - 0 0 0 0 0 400 0 0 0.0 ms 0 0 lost",
		}},
		{&before, []string{
			"a live - 0 0 0 1100 0 50 100 ms", "b silent - 0 0 0 1000 0 - -1500 ms",
			"0 - - 0 0 0 0 0 520 0 10 0 0.0 ms 0 7 -", "1 - - 0 0 0 0 0 400 0 - 0 0.0 ms 0 0 lost", "2 - - 0 0 0 0 0 60 0 30 0 0.0 ms 0 0 -",
		}},
		{&r, []string{"a live - 0 0 0 1100 0 - 100 ms", "0 - - 0 0 0 0 0 520 0 - 0 0.0 ms 0 7 -"}}, // no time has passed
	} {
		var out bytes.Buffer
		if err := (&app{stdout: &out}).printStatus(&r, c.before); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		for _, line := range c.lines {
			if !slices.Contains(lines, line) {
				t.Errorf("%q is not shown in\n%s", line, out.String())
			}
		}
		if n := strings.Count(out.String(), "warning"); n != 1 {
			t.Errorf("%d warnings are shown", n)
		}
	}
}

// TestInterruptedWatchIsNoFailure ends a watch with a signal, as a user does. The signal ends the context, as in main.
func TestInterruptedWatchIsNoFailure(t *testing.T) {
	url := startEngine(t)
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	defer stop()
	lines, ended, errOut := startWatch(ctx, url)
	if !lines.Scan() {
		t.Fatalf("watch ended: %s", errOut.String())
	}
	interruptSelf(t)
	if code := <-ended; code != exitOK || errOut.Len() > 0 {
		t.Errorf("watch ended with %d, %q", code, errOut.String())
	}
}

func interruptSelf(t *testing.T) {
	t.Helper()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsJoined(t *testing.T) {
	err := errors.Join(errors.New("carillon: unavailable"), fmt.Errorf("give up\n\tthe save (%w)\n", context.DeadlineExceeded))
	if got := oneLine(err); got != "unavailable; give up; the save (time is up)" {
		t.Errorf("%q", got)
	}
}

// An error quotes what a file of jobs has, and shows it on the terminal as text.
func TestErrorsCommandNoTerminal(t *testing.T) {
	_, err := carillon.ParseLine([]byte("{\"id\":\"x\",\"\\u001b[2J\u009b31m\u202eé\":1}"))
	if got, want := oneLine(err), `unknown_field: \x1b[2J\u009b31m\u202eé: is no field`; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An interrupted command says so, in its own words and not a library's. Here the service that it asks does not answer, but interrupts it.
func TestInterrupted(t *testing.T) {
	url, dir := natstest.Start(t, &natsserver.Options{}).ClientURL(), t.TempDir()
	if err := fillArchive(archive.OpenDir(nil, dir), 1); err != nil {
		t.Fatal(err)
	}
	asked, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	for _, subject := range []string{"carillon.>", "$JS.API.>"} {
		if _, err := asked.Subscribe(subject, func(*nats.Msg) { interruptSelf(t) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := asked.Flush(); err != nil {
		t.Fatal(err)
	}
	interrupted := func(args string, asks bool) (string, int) {
		ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt)
		defer stop()
		if !asks {
			interruptSelf(t)
			<-ctx.Done()
		}
		var out, errOut bytes.Buffer
		code := Run(ctx, strings.Fields(args), strings.NewReader(""), &out, &errOut)
		return errOut.String(), code
	}
	unknown := "carillon: unavailable: no answer in time; the outcome is unknown (interrupted)\n"
	for _, c := range []struct {
		args string
		asks bool
		want string
	}{
		{"snapshot list " + dir, false, "carillon: interrupted\n"},
		{"snapshot verify " + dir, false, "carillon: interrupted\n"},
		{"snapshot prune " + dir, false, "carillon: interrupted\n"},
		{"snapshot restore " + dir + " -s " + url, false, "carillon: unavailable: cannot connect to " + url + ": interrupted\n"},
		{"job put x -f -", false, "carillon: reading -: interrupted\n"},
		{"job fire x --payload-file -", false, "carillon: reading -: interrupted\n"},
		{"log dump -s " + url, true, "carillon: stream CARILLON_LOG: interrupted\n"},
		{"job list -s " + url, true, unknown},
		{"job export -s " + url, true, unknown},
		{"node drain engine-2 -s " + url, true, unknown},
	} {
		if got, code := interrupted(c.args, c.asks); code != exitFailure || got != c.want {
			t.Errorf("%s: %d, %q, want %q", c.args, code, got, c.want)
		}
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	go func() {
		if _, err := mute.Accept(); err == nil {
			interruptSelf(t)
		}
	}()
	url = "nats://" + mute.Addr().String()
	want := "carillon: unavailable: cannot connect to " + url + ": interrupted\n"
	if got, code := interrupted("job list --timeout 10m -s "+url, true); code != exitFailure || got != want {
		t.Errorf("connecting: %d, %q, want %q", code, got, want)
	}
}

// If an engine drains for a reason of its own, node drain --undo does not end that, and says so.
func TestUndoOfNoDrain(t *testing.T) {
	url := natstest.Start(t, &natsserver.Options{}).ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	status := carillon.StatusReply{Nodes: []carillon.NodeStatus{{Node: "e1", State: carillon.NodeDraining}}}
	drain := carillon.DrainReply{Node: "e1", Draining: true}
	for subject, answer := range map[string][]byte{"carillon.api.status": status.AppendJSON(nil), "carillon.api.drain.e1": drain.AppendJSON(nil)} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := run(t, "-s", url, "node", "drain", "e1", "--undo")
	if code != exitFailure || out != "" || !strings.HasPrefix(errOut, "carillon: unavailable: node e1 goes on draining: ") {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
}

// A node that is silent is not named as one that could be drained.
func TestDrainOfSilentNode(t *testing.T) {
	url := natstest.Start(t, &natsserver.Options{}).ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	status := carillon.StatusReply{Nodes: []carillon.NodeStatus{
		{Node: "e1", State: carillon.NodeLive}, {Node: "e2", State: carillon.NodeSilent}, {Node: "e3", State: carillon.NodeSilent},
	}}
	if _, err := nc.Subscribe("carillon.api.status", func(m *nats.Msg) { _ = m.Respond(status.AppendJSON(nil)) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"e2": `node "e2" is silent`, "e4": `there is no node "e4"`} {
		code, _, errOut := run(t, "-s", url, "node", "drain", name)
		if want := "carillon: not_found: " + says + "; live are e1\n"; code != exitFailure || errOut != want {
			t.Errorf("%d, %q, want %q", code, errOut, want)
		}
	}
}

// An interrupted command ends even if its input never does, or nobody answers its question.
func TestInterruptedInput(t *testing.T) {
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var out, errOut bytes.Buffer
	go func() { ended <- Run(ctx, []string{"job", "put", "x", "-f", "-"}, in, &out, &errOut) }()
	if _, err := io.WriteString(feed, `{"schedule":`); err != nil { // this returns once it has been read
		t.Fatal(err)
	}
	stop()
	if code := <-ended; code != exitFailure || errOut.String() != "carillon: reading -: interrupted\n" {
		t.Errorf("put ended with %d, %q", code, errOut.String())
	}
	asked, answer := io.Pipe()
	defer answer.Close()
	a := &app{stdin: asked, stderr: io.Discard}
	if sure, err := a.ask(ctx, "sure?"); sure || !errors.Is(err, context.Canceled) {
		t.Errorf("nobody answered: %t, %v", sure, err)
	}
}

// It ends, too, while it waits for somebody who writes to a named pipe, or for more from him.
func TestInterruptedPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Skipf("this system has no named pipes: %v", err)
	}
	start := func(ctx context.Context, args ...string) (ended chan string) {
		ended = make(chan string, 1)
		go func() {
			var out, errOut bytes.Buffer
			code := Run(ctx, args, strings.NewReader(""), &out, &errOut)
			ended <- fmt.Sprint(code, " ", errOut.String())
		}()
		return ended
	}
	ctx, stop := context.WithCancel(t.Context())
	put := start(ctx, "job", "put", "x", "-f", pipe)
	feed, err := os.OpenFile(pipe, os.O_WRONLY, 0) // this returns once it is read from
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	if _, err := feed.WriteString(`{"schedule":`); err != nil {
		t.Fatal(err)
	}
	stop()
	got := natstest.Receive(t, "the end of a put that reads", put)
	if want := "1 carillon: reading " + pipe + ": interrupted\n"; got != want && got != strings.Replace(want, "reading", "open", 1) {
		t.Errorf("%q, want %q", got, want)
	}
	silent := filepath.Join(t.TempDir(), "silent")
	if err := exec.Command("mkfifo", silent).Run(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"put", "x", "-f"}, {"fire", "x", "--payload-file"}, {"import"}} {
		ended := start(ctx, append(append([]string{"job"}, args...), silent)...)
		if got, want := natstest.Receive(t, "the end of job "+args[0], ended), "1 carillon: open "+silent+": interrupted\n"; got != want {
			t.Errorf("%s: %q, want %q", args[0], got, want)
		}
	}
}

// White space around the JSON of --payload is dropped, as in a request; that of a text is its own.
func TestPayloadBetweenSpaces(t *testing.T) {
	url := startEngine(t)
	fire(t, url, "a", "--payload", " \r\n{\"n\":  1}\t\n")
	fire(t, url, "b", "--payload-text", " x\n")
	for id, want := range map[string]string{"a": `"payload":{"n":  1}`, "b": `"payload_text":" x\n"`} {
		if _, got, _ := run(t, "-s", url, "job", "get", id, "--json"); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if code, _, errOut := run(t, "-s", url, "job", "fire", "a", "--payload", " 1\n"); code != exitOK {
		t.Errorf("fire: %d, %s", code, errOut)
	}
	for _, args := range [][]string{{"put", "c", "--payload", " \n"}, {"fire", "a", "--payload", "\u00a01"}} {
		if code, _, errOut := run(t, append([]string{"-s", url, "job"}, args...)...); code != exitFailure || !strings.Contains(errOut, "invalid_json: ") {
			t.Errorf("%q: %d, %s", args, code, errOut)
		}
	}
}

// TestImportResumes: when an import ends at a refused line, all lines before the one that it says to go on from are in. Once the line is
// mended, the import goes on from there.
func TestImportResumes(t *testing.T) {
	url := startEngine(t)
	var lines []string
	for i := range 300 {
		lines = append(lines, fmt.Sprintf(`{"id":"job-%03d","schedule":"@at 2100-01-01T00:00:00Z"}`+"\n", i))
	}
	good := lines[200]
	lines[200] = strings.Replace(good, "job-200", "not an id", 1)
	var out, errOut bytes.Buffer
	if code := Run(t.Context(), []string{"-s", url, "job", "import"}, strings.NewReader(strings.Join(lines, "")), &out, &errOut); code != exitFailure {
		t.Errorf("code %d", code)
	}
	want := "carillon: line 201: invalid_job_id: "
	if !strings.HasPrefix(errOut.String(), want) || !strings.HasSuffix(errOut.String(), "go on with --from 201\n") {
		t.Errorf("stderr %q", errOut.String())
	}
	code, listed, _ := run(t, "-s", url, "job", "list", "--json")
	if n := strings.Count(listed, `"id":"job-`); code != exitOK || n < 200 {
		t.Errorf("code %d, %d jobs are in; the 200 before the bad line must be", code, n)
	}
	lines[200] = good
	errOut.Reset()
	if code := Run(t.Context(), []string{"-s", url, "job", "import", "--from", "201"}, strings.NewReader(strings.Join(lines, "")), &out, &errOut); code != exitOK {
		t.Errorf("from the mended line on: code %d, %s", code, &errOut)
	}
	code, listed, _ = run(t, "-s", url, "job", "list", "--json")
	if n := strings.Count(listed, `"id":"job-`); code != exitOK || n != 300 {
		t.Errorf("code %d, %d jobs are in, not 300", code, n)
	}
}

// interruptingReader returns its lines at once, and calls interrupt when more is read.
type interruptingReader struct {
	lines     io.Reader
	interrupt func()
}

func (r interruptingReader) Read(b []byte) (int, error) {
	n, err := r.lines.Read(b)
	if err == io.EOF {
		r.interrupt()
	}
	return n, err
}

// TestImportResumesBeforeWhatWasNotSent: when an import is interrupted, the lines before a refused line may not have been
// sent yet.
func TestImportResumesBeforeWhatWasNotSent(t *testing.T) {
	url := startEngine(t)
	for i := range 20 { // by the interrupt the line before the refused one has been sent, or not
		ctx, cancel := context.WithCancel(t.Context())
		id := "job-" + string(rune('a'+i))
		in := interruptingReader{strings.NewReader(`{"id":"` + id + `"}` + "\n" + `{"id":"not an id"}` + "\n"), cancel}
		var out, errOut bytes.Buffer
		if code := Run(ctx, []string{"-s", url, "job", "import"}, in, &out, &errOut); code != exitFailure {
			t.Errorf("code %d", code)
		}
		if code, _, _ := run(t, "-s", url, "job", "get", id); code != exitOK && !strings.HasSuffix(errOut.String(), "go on with --from 1\n") {
			t.Fatalf("line 1 is not in, and it says %q", errOut.String())
		}
	}
}

// An import with --keep-going that is interrupted does not say to go on from lines that were refused.
func TestImportKeepsGoing(t *testing.T) {
	url := startEngine(t)
	ctx, cancel := context.WithCancel(t.Context())
	in := interruptingReader{strings.NewReader(`{"id":"not an id"}` + "\n" + `{"id":"a"}` + "\n" + `{"id":"b"}` + "\n"), cancel}
	var out, errOut bytes.Buffer
	code := Run(ctx, []string{"-s", url, "job", "import", "--keep-going"}, in, &out, &errOut)
	said := errOut.String()
	if code != exitFailure || !strings.Contains(said, "line 1: invalid_job_id") || !strings.Contains(said, "carillon: interrupted; go on with --from ") || strings.HasSuffix(said, "--from 1\n") {
		t.Errorf("it ended with %d, %q", code, said)
	}
}

// TestImportKeepsGoingBeforeWhatIsNotKnown: lines whose request was under way when the import was interrupted may not be in.
func TestImportKeepsGoingBeforeWhatIsNotKnown(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, &natsserver.Options{}).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := nc.Subscribe("carillon.api.import", func(m *nats.Msg) {
		if len(m.Data) == 0 {
			if err := m.Respond((&carillon.ImportReply{}).AppendJSON(nil)); err != nil {
				t.Error(err)
			}
			return
		}
		cancel() // without an answer
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	in := strings.NewReader(`{"id":"a"}` + "\n" + `{"id":"b"}` + "\n")
	code := Run(ctx, []string{"-s", nc.ConnectedUrl(), "job", "import", "--keep-going"}, in, &out, &errOut)
	if code != exitFailure || !strings.HasSuffix(errOut.String(), "interrupted; go on with --from 1\n") {
		t.Errorf("it ended with %d, %q", code, errOut.String())
	}
}

// TestImportEndsBeforeItsInput: a refused line ends an import even if its input never ends.
func TestImportEndsBeforeItsInput(t *testing.T) {
	url := startEngine(t)
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan int, 1)
	var out, errOut bytes.Buffer
	go func() { ended <- Run(ctx, []string{"-s", url, "job", "import"}, in, &out, &errOut) }()
	if _, err := io.WriteString(feed, `{"id":"a"}`+"\n"+`{"id":"not an id"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if code != exitFailure || !strings.HasSuffix(errOut.String(), "go on with --from 2\n") {
			t.Errorf("%d, %s", code, errOut.String())
		}
	case <-ctx.Done():
		t.Error("a refused line did not end it")
	}
}

// TestImportOfInputThatBreaks: the part of a line before an error of the input is not taken for the line.
func TestImportOfInputThatBreaks(t *testing.T) {
	url := startEngine(t)
	for _, option := range []string{"--keep-going=false", "--keep-going"} {
		in := io.MultiReader(strings.NewReader(`{"id":"a"}`+"\n"+`{"id":"b","sch`), iotest.ErrReader(errors.New("it broke")))
		var out, errOut bytes.Buffer
		code := Run(t.Context(), []string{"-s", url, "job", "import", option}, in, &out, &errOut)
		if code != exitFailure || errOut.String() != "carillon: line 2: it broke\n" || !strings.HasPrefix(out.String(), "1 job imported") {
			t.Errorf("%s: %d, %q, %q", option, code, out.String(), errOut.String())
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range []string{"0 jobs", "1 job", "2 jobs"} {
		if got := count(n, "job"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"plain", 10, "plain"},
		{"longer than ten", 10, "longer tha…"},
		{"ééé", 3, "é…"},
		{"éé", 2, "é…"},
		{"€€", 4, "€…"},
		{"a\nb", 10, `"a\nb"`},
		{"\xff", 10, `"\xff"`},
		{"\x1b[31m", 10, `"\x1b[31m"`},
		{"", 10, ""},
	} {
		if got := excerpt([]byte(c.in), c.most); got != c.want {
			t.Errorf("excerpt(%q, %d) = %s, want %s", c.in, c.most, got, c.want)
		}
	}
}

func TestRedacted(t *testing.T) {
	got := redacted("nats://u:secret@a:4222,nats://b:4222,u:secret@c:1,nats://secret@d:1,nats://u:secret%@e:1,tls://u:x@secret@f:1")
	if want := "nats://u:xxxxx@a:4222,nats://b:4222,u:xxxxx@c:1,nats://xxxxx@d:1,nats://u:xxxxx@e:1,tls://u:xxxxx@f:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What serve prints with --json is JSON, too.
func TestServeJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errOut bytes.Buffer
	shown := writerFunc(func(b []byte) (int, error) {
		cancel() // it prints nothing else
		return out.Write(b)
	})
	code := Run(ctx, []string{"serve", "--json", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "off"}, strings.NewReader(""), shown, &errOut)
	want := regexp.MustCompile(`^{"type":"ready","nats":"nats://127\.0\.0\.1:\d+","partitions":8}\n$`)
	if code != exitOK || !want.Match(out.Bytes()) {
		t.Errorf("serve ended with %d, it printed %q, %s", code, out.String(), errOut.String())
	}
}

// traced prints a stack trace by %+v, as Pebble's errors do.
type traced struct{ error }

func (e traced) Format(s fmt.State, _ rune) {
	fmt.Fprint(s, e.Error())
	if s.Flag('+') {
		fmt.Fprint(s, "\n(1) attached stack trace")
	}
}

// An error in the engine's log is its message alone, in either format.
func TestLogHasNoStackTraces(t *testing.T) {
	for format, want := range map[string]string{"text": `error="no space left"`, "json": `"error":"no space left"`} {
		var log bytes.Buffer
		logger, err := (&serveFlags{level: "info", format: format}).logger(&log)
		if err != nil {
			t.Fatal(err)
		}
		logger.Warn("no snapshot was saved", "error", traced{errors.New("no space left")})
		if !strings.Contains(log.String(), want) || strings.Contains(log.String(), "trace") {
			t.Errorf("%s: %s", format, log.String())
		}
	}
}

func TestReadyTellsNoPassword(t *testing.T) {
	for asJSON, want := range map[bool]string{
		false: "carillon ready nats=nats://u:xxxxx@a:4222 http=http://127.0.0.1:8080 partitions=8\n",
		true:  `{"type":"ready","nats":"nats://u:xxxxx@a:4222","http":"http://127.0.0.1:8080","partitions":8}` + "\n",
	} {
		var out bytes.Buffer
		a := &app{stdout: &out, json: asJSON}
		if err := a.printReady(node.Ready{NATS: "nats://u:secret@a:4222", HTTP: "http://127.0.0.1:8080", Partitions: 8}); err != nil || out.String() != want {
			t.Errorf("got %s (%v), want %s", out.String(), err, want)
		}
	}
}

// A write that fails leaves the old file, and one that succeeds replaces it.
func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	name, link := filepath.Join(dir, "jobs.ndjson"), filepath.Join(dir, "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	for i, c := range []struct {
		to, text string
		err      error
		want     string
	}{
		{name, "half", failed, ""},
		{name, "first", nil, "first"},
		{name, "half", failed, "first"},
		{link, "second", nil, "second"},
		{name, "", nil, ""},
	} {
		if i == 2 { // from now on only the owner may read it
			if err := os.Chmod(name, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := writeWhole(c.to, func(w *bufio.Writer) error {
			_, _ = w.WriteString(c.text) // Flush returns the error
			return cmp.Or(w.Flush(), c.err)
		})
		if err != c.err && !errors.Is(err, c.err) {
			t.Errorf("%d: %v", i, err)
		}
		if got, _ := os.ReadFile(name); string(got) != c.want {
			t.Errorf("%d: the file has %q, want %q", i, got, c.want)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it may be read by others now: %v, %v", info.Mode(), err)
	}
	if err := writeWhole(os.DevNull, func(*bufio.Writer) error { return nil }); err != nil {
		t.Error(err)
	}
	// Like a shell, it creates the file that a link leads to, even by way of other links, and leaves the links as they are.
	far := filepath.Join(dir, "far")
	dangling, later := filepath.Join(dir, "dangling"), filepath.Join(far, "later.ndjson")
	err := errors.Join(os.Mkdir(far, 0o700), os.Symlink("far/again", dangling), os.Symlink("later.ndjson", filepath.Join(far, "again")))
	if err != nil {
		t.Fatal(err)
	}
	err = writeWhole(dangling, func(w *bufio.Writer) error {
		_, err := w.WriteString("third")
		return err
	})
	if got, _ := os.ReadFile(later); err != nil || string(got) != "third" {
		t.Errorf("through a link to no file: %q, %v", got, err)
	}
	if info, err := os.Lstat(dangling); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link is %v, %v", info, err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(filepath.Join(dir, "loop"), func(*bufio.Writer) error { return nil }); err == nil {
		t.Error("a link to itself is written to")
	}
	// Of two writes at once the second is refused: the first would put in place what the second has written so far.
	if err := writeWhole(name, func(*bufio.Writer) error {
		return writeWhole(link, func(*bufio.Writer) error { return nil })
	}); !errors.Is(err, filelock.ErrLocked) {
		t.Errorf("two at once: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 5 {
		t.Errorf("%v, %v: want the file, the links and the directory", left, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link is %v, %v", info, err)
	}
}

// A file that has been replaced survives a power failure.
func TestReplaceIsDurable(t *testing.T) {
	files := vfs.NewCrashableMem()
	for _, text := range []string{"first", "second"} {
		if err := replace(files, "jobs.ndjson", func(w *bufio.Writer) error {
			_, err := w.WriteString(text)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		f, err := files.CrashClone(vfs.CrashCloneCfg{}).Open("jobs.ndjson")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != text {
			t.Errorf("the file has %q (%v), want %q", got, err, text)
		}
	}
}

// Neither our own errors about a server nor the library's contain a password.
func TestErrorsTellNoPassword(t *testing.T) {
	for server, want := range map[string]int{
		"nats://u:secret%@127.0.0.1:1": exitUsage, "u:secret@127.0.0.1:1": exitFailure,
		"nats://secret@127.0.0.1:1": exitFailure, "nats://u:sec ret@127.0.0.1:1": exitUsage, "nats://u:secret@127.0.0.1:65536": exitUsage,
	} {
		code, _, errOut := run(t, "-s", server, "status", "--timeout", "1s")
		if code != want || !strings.Contains(errOut, "127.0.0.1") || strings.Contains(errOut, "sec") {
			t.Errorf("%s: %d, %s", server, code, errOut)
		}
	}
}

// The environment fills in what no flag gave.
func TestConnectionFromEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"NATS_URL": "nats://env:1", "NATS_USER": "u", "NATS_PASSWORD": "p", "NATS_CREDS": "c", "NATS_NKEY": "n",
		"NATS_CERT": "cert", "NATS_KEY": "key", "NATS_CA": "ca", "NATS_TIMEOUT": "7s", "CARILLON_PREFIX": "acme",
	} {
		t.Setenv(name, value)
	}
	a := &app{}
	root := newRootCommand(a)
	if err := root.PersistentFlags().Parse([]string{"--user", "flag"}); err != nil {
		t.Fatal(err)
	}
	if err := a.connection.resolve(); err != nil {
		t.Fatal(err)
	}
	want := connection{
		server: "nats://env:1", user: "flag", password: "p", creds: "c", nkey: "n",
		cert: "cert", key: "key", ca: "ca", timeout: 7e9, prefix: "acme",
	}
	if a.connection != want {
		t.Errorf("got %+v, want %+v", a.connection, want)
	}
	var flags []string
	for _, f := range connectionFlags {
		if root.PersistentFlags().Lookup(f) == nil {
			flags = append(flags, f)
		}
	}
	if len(flags) > 0 || slices.Contains(connectionFlags, "json") {
		t.Errorf("connectionFlags names %v, which are none", flags)
	}
}

// fire puts a job and fires it.
func fire(t *testing.T, url, job string, flags ...string) {
	t.Helper()
	for _, args := range [][]string{append([]string{"job", "put", job}, flags...), {"job", "fire", job}} {
		if code, _, errOut := run(t, append([]string{"-s", url}, args...)...); code != exitOK {
			t.Fatalf("%v: %s", args, errOut)
		}
	}
}

// TestWorkPrints runs a worker without a command until it has printed the one trigger there is.
func TestWorkPrints(t *testing.T) {
	url := startEngine(t)
	fire(t, url, "bell", "--topic", "work.a", "--payload", `{"n":1}`)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"-s", url, "work", "work.>", "--name", "look", "--json"}, strings.NewReader(""), w, &errOut)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	lines.Scan()
	var got triggerLine
	if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
		t.Fatalf("%q: %v, %s", lines.Text(), err, errOut.String())
	}
	if got.Job != "bell" || got.Topic != "work.a" || got.Attempt != 1 || string(got.Payload) != `{"n":1}` {
		t.Errorf("it printed %s", lines.Text())
	}
	cancel()
	if code := <-ended; code != exitOK || errOut.Len() > 0 {
		t.Errorf("work ended with %d, %q", code, errOut.String())
	}
}

// fullDisk fails one write as a full disk does, and then passes writes on.
type fullDisk struct {
	full bool
	to   io.Writer
}

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.full {
		d.full = false
		return 0, syscall.ENOSPC
	}
	return d.to.Write(b)
}

// TestWorkKeepsWhatItCannotPrint: a trigger is acknowledged only once it has been printed, and is delivered again until then.
func TestWorkKeepsWhatItCannotPrint(t *testing.T) {
	url := startEngine(t)
	fire(t, url, "bell", "--topic", "work.a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"-s", url, "work", "work.>", "--name", "look"}, strings.NewReader(""), &fullDisk{full: true, to: w}, &errOut)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	if !lines.Scan() || !strings.Contains(lines.Text(), "bell") {
		t.Errorf("it printed %q", lines.Text())
	}
	cancel()
	if code := <-ended; code != exitOK || !strings.Contains(errOut.String(), "attempt 1: no space left on device") {
		t.Errorf("work ended with %d, %q", code, errOut.String())
	}
}

// TestWorkIsDoneOnce: a command that ended with code 0 is not run again, even if its output could not be printed.
func TestWorkIsDoneOnce(t *testing.T) {
	url := startEngine(t)
	fire(t, url, "first", "--topic", "work.a")
	done := filepath.Join(t.TempDir(), "done")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{
			"-s", url, "work", "work.>", "--name", "once", "--concurrency", "1", "--",
			"sh", "-c", `echo "$CARILLON_JOB" >> "$0"; echo "$CARILLON_JOB"`, done,
		}, strings.NewReader(""), &fullDisk{full: true, to: w}, &errOut)
		w.Close()
	}()
	for told := ""; !strings.Contains(told, "first"); { // the command does its work, and its output is lost
		b, err := os.ReadFile(done)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		told = string(b)
		time.Sleep(time.Millisecond)
	}
	fire(t, url, "second", "--topic", "work.a")
	lines := bufio.NewScanner(r)
	if !lines.Scan() || lines.Text() != "second" {
		t.Errorf("it printed %q", lines.Text())
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for p := range 8 { // a trigger that is not acknowledged would be delivered again
		for unanswered := 1; unanswered > 0; {
			consumer, err := js.Consumer(ctx, carillon.DefaultNames().OutStream(p), "once")
			if err != nil {
				t.Fatal(err)
			}
			unanswered = consumer.CachedInfo().NumAckPending
		}
	}
	cancel()
	if code := <-ended; code != exitOK || !strings.Contains(errOut.String(), "what the command wrote is lost: no space left on device") {
		t.Errorf("work ended with %d, %q", code, errOut.String())
	}
	if b, err := os.ReadFile(done); err != nil || string(b) != "first\nsecond\n" {
		t.Errorf("it did %q, %v", b, err)
	}
}

// TestDemo runs the demonstration until one of its sample jobs has fired.
func TestDemo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"demo", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, strings.NewReader(""), w, &errOut)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	hint := "  " + os.Args[0] + " -s nats://" // the program as it was called itself
	rang, told := false, false
	for !rang && lines.Scan() {
		told = told || strings.HasPrefix(lines.Text(), hint)
		rang = strings.Contains(lines.Text(), "heartbeat") && strings.Contains(lines.Text(), " ms  ")
	}
	cancel()
	go io.Copy(io.Discard, r) // what it prints until it has stopped
	if code := <-ended; code != exitOK || !rang || !told {
		t.Errorf("demo ended with %d, rang %t, told how to put %t: %s", code, rang, told, errOut.String())
	}
}

// TestDemoInterruptedAtOnce ends the demonstration at the moment when it is ready: that is no failure, either.
func TestDemoInterruptedAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := writerFunc(func(b []byte) (int, error) {
		cancel()
		return len(b), nil
	})
	var errOut bytes.Buffer
	code := Run(ctx, []string{"demo", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "off"}, strings.NewReader(""), ready, &errOut)
	if code != exitOK || errOut.Len() > 0 {
		t.Errorf("demo ended with %d, %q", code, errOut.String())
	}
}

// A payload that is not UTF-8 is shown in base64, even if encoding/json would accept it: a line of JSON must be UTF-8.
func TestTriggerLineIsText(t *testing.T) {
	for payload, want := range map[string]string{
		"{\"name\":\"Jos\xe9\"}": "base64", "{\"name\":\"José\"}": "json", "Jos\xe9": "base64", "José": "text",
	} {
		line := newTriggerLine(&carillon.Trigger{Payload: []byte(payload)})
		got := "base64"
		switch {
		case line.Payload != nil:
			got = "json"
		case line.Text != "":
			got = "text"
		}
		if got != want {
			t.Errorf("%q is told as %s, want %s", payload, got, want)
		}
	}
}

// The default is long enough for the answer of an engine that has no room in its log, which takes three seconds.
func TestTimeoutByDefault(t *testing.T) {
	t.Setenv("NATS_TIMEOUT", "")
	var c connection
	if err := c.resolve(); err != nil || c.timeout != carillon.DefaultTimeout {
		t.Errorf("%s, %v; want the client library's", c.timeout, err)
	}
}

// Errors that are not a trigger's are printed only a few times in a period, so that they do not fill the terminal.
func TestWorkLimitsErrors(t *testing.T) {
	var errOut bytes.Buffer
	w := worker{app: &app{stderr: &errOut}}
	for range 100 {
		w.report(nil, errors.New("away"))
		w.report(&carillon.Trigger{ID: "t"}, errors.New("failed"))
	}
	if got := errOut.String(); strings.Count(got, "away") != maxErrorLines || strings.Count(got, "failed") != 100 {
		t.Errorf("it says %s", got)
	}
}

// What a command writes is kept up to a bound, and the worker says how much it left out.
func TestBoundedOutput(t *testing.T) {
	var said boundedOutput
	for range 3 * maxOutput / 1000 {
		if n, err := said.Write(make([]byte, 1000)); n != 1000 || err != nil {
			t.Fatal(n, err)
		}
	}
	var to, tell bytes.Buffer
	if err := said.show(&to, &tell, "job@1"); err != nil || to.Len() != maxOutput || cap(said.kept) > 2*maxOutput {
		t.Errorf("%d bytes are shown of room for %d, %v", to.Len(), cap(said.kept), err)
	}
	if want := fmt.Sprintf("job@1: %d bytes of what the command wrote are left out", 3*maxOutput/1000*1000-maxOutput); !strings.Contains(tell.String(), want) {
		t.Errorf("it says %q", tell.String())
	}
}

// Texts that a client put into a job have no effect on the terminal that shows the job: U+009B begins a control sequence, and U+202E
// reverses the rest of a line.
func TestDescribeJobIsSafe(t *testing.T) {
	var out bytes.Buffer
	a := &app{stdout: &out}
	odd := "\u009b31m\u202e"
	job := carillon.Job{ID: "x", Owner: odd, Labels: map[string]string{odd: odd}, Headers: map[string]string{"H": odd, "Plain": "é"}}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := a.describeJob(&carillon.JobReply{ID: "x", Spec: job}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\u009b\u202e") || !strings.Contains(out.String(), "Plain=é") {
		t.Errorf("it shows %q", out.String())
	}
}

// TestByteOrderMark: a text of jobs may begin with a byte order mark, also with that of UTF-16, as some editors and shells write it. A
// payload keeps its own.
func TestByteOrderMark(t *testing.T) {
	url := startEngine(t)
	mark := func(text string) string { return "\ufeff" + text }
	utf16 := func(text string) string {
		encoded, err := textunicode.UTF16(textunicode.LittleEndian, textunicode.UseBOM).NewEncoder().String(text)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	for id, input := range map[string]string{
		"import-utf8":  mark(`{"id":"import-utf8","owner":"Zoë"}` + "\n"),
		"import-utf16": utf16(`{"id":"import-utf16","owner":"Zoë"}` + "\r\n"),
		"put-utf8":     mark(`{"owner":"Zoë"}`),
		"put-utf16":    utf16(`{"owner":"Zoë"}`),
	} {
		args := []string{"-s", url, "job", "import"}
		if strings.HasPrefix(id, "put") {
			args = []string{"-s", url, "job", "put", id, "-f", "-"}
		}
		var out, errOut bytes.Buffer
		if code := Run(t.Context(), args, strings.NewReader(input), &out, &errOut); code != exitOK {
			t.Errorf("%s: %d, %s", id, code, &errOut)
		}
		if _, got, _ := run(t, "-s", url, "job", "get", id, "--json"); !strings.Contains(got, `"owner":"Zoë"`) {
			t.Errorf("%s: %s", id, got)
		}
	}
	var out, errOut bytes.Buffer
	args := []string{"-s", url, "job", "put", "payload", "--payload-file", "-"}
	if code := Run(t.Context(), args, strings.NewReader(mark("x")), &out, &errOut); code != exitOK {
		t.Errorf("a payload: %d, %s", code, &errOut)
	}
	if _, got, _ := run(t, "-s", url, "job", "get", "payload", "--json"); !strings.Contains(got, mark("x")) {
		t.Errorf("a payload: %s", got)
	}
}

// TestImportLongLine: a line that is too long for any job is refused like other bad lines, and the lines behind it are read.
func TestImportLongLine(t *testing.T) {
	url := startEngine(t)
	long := `{"id":"long","payload_text":"` + strings.Repeat("x", maxLine) + `"}`
	for _, end := range []string{"\n" + `{"id":"last"}` + "\n", "\n", ""} {
		var out, errOut bytes.Buffer
		input := `{"id":"first"}` + "\n" + long + end
		code := Run(t.Context(), []string{"-s", url, "job", "import", "--keep-going"}, strings.NewReader(input), &out, &errOut)
		want := count(1+strings.Count(end, "last"), "job") + " imported"
		if code != exitFailure || !strings.HasPrefix(out.String(), want) || !strings.Contains(errOut.String(), "line 2: payload_too_large: is longer than") ||
			!strings.HasSuffix(errOut.String(), "carillon: 1 line failed\n") {
			t.Errorf("before %.20q: %d, %q, %q", end, code, out.String(), errOut.String())
		}
	}
	var out, errOut bytes.Buffer
	input := long + "\n" + `{"id":"last"}` + "\n"
	if code := Run(t.Context(), []string{"-s", url, "job", "import", "--from", "2"}, strings.NewReader(input), &out, &errOut); code != exitOK {
		t.Errorf("from behind it: %d, %q", code, errOut.String())
	}
}

// TestExportOfEscapes: a JSON payload that has line breaks, and is otherwise almost only characters that a text escapes, can be imported
// and restored again.
func TestExportOfEscapes(t *testing.T) {
	url := startEngine(t)
	payload := "[\n\"" + strings.Repeat(`\"`, (carillon.MaxPayload-5)/2) + `"]`
	run := func(stdin string, args ...string) string {
		var out, errOut bytes.Buffer
		if code := Run(t.Context(), append([]string{"-s", url}, args...), strings.NewReader(stdin), &out, &errOut); code != exitOK {
			t.Fatalf("%v: %d, %.200q", args, code, errOut.String())
		}
		return out.String()
	}
	run(`{"payload":`+payload+`}`, "job", "put", "page", "-f", "-")
	exported := run("", "job", "export")
	archive := filepath.Join(t.TempDir(), "archive")
	run("", "snapshot", "save", archive)
	for _, again := range []func(){
		func() { run(exported, "job", "import") },
		func() { run("", "snapshot", "restore", archive) },
	} {
		run("", "job", "delete", "page")
		again()
		r, err := carillon.ParseJobReply([]byte(run("", "job", "get", "page", "--json")))
		if err != nil || string(r.Spec.Payload) != payload {
			t.Errorf("it has a payload of %d bytes, %v", len(r.Spec.Payload), err)
		}
	}
}
