package node_test

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
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// asNode is the environment variable that makes the test binary a node, with its settings in JSON: what a test kills is a real process.
const asNode = "CARILLON_TEST_NODE"

func TestMain(m *testing.M) {
	if s := os.Getenv(asNode); s != "" {
		os.Exit(runAsNode(s))
	}
	if s := os.Getenv(asNATS); s != "" {
		os.Exit(runAsNATS(s))
	}
	if s := os.Getenv(asRestore); s != "" {
		os.Exit(runAsRestore(s))
	}
	code := m.Run()
	os.RemoveAll(newerBuild.dir)
	os.Exit(code)
}

// startAs starts the test binary, or another build of it, on a host. as is the environment variable that says what it is to
// be (asNode, asNATS, asRestore). It ends when in is closed.
func startAs(t testing.TB, cmd *exec.Cmd, on *host, as string, settings any) (in io.Closer, out *bufio.Reader) {
	t.Helper()
	encoded, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), as+"="+string(encoded))
	in, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := on.start(cmd); err != nil {
		t.Fatal(err)
	}
	return in, bufio.NewReader(stdout)
}

// asNATS is the environment variable that makes the test binary a nats-server, with its natsSettings in JSON.
const asNATS = "CARILLON_TEST_NATS"

// natsSettings are those of one nats-server; with a cluster port it is one of several.
type natsSettings struct {
	Host        string // default 127.0.0.1
	Port        int
	Dir         string
	Name        string
	ClusterPort int
	Routes      string
}

func runAsNATS(encoded string) int {
	var s natsSettings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s.Host = cmp.Or(s.Host, "127.0.0.1")
	// The pings are those of docs/deploy/nats/server.conf.
	o := &server.Options{
		Host: s.Host, Port: s.Port, JetStream: true, StoreDir: s.Dir, NoLog: true, NoSigs: true, PingInterval: 2 * time.Second, MaxPingsOut: 1,
	}
	if s.ClusterPort != 0 {
		o.ServerName = s.Name
		o.Cluster = server.ClusterOpts{Name: "test", Host: s.Host, Port: s.ClusterPort, PoolSize: -1, PingInterval: 5 * time.Second, MaxPingsOut: 2}
		o.Routes = server.RoutesFromStr(s.Routes)
	}
	ns, err := server.NewServer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		fmt.Fprintf(os.Stderr, "nats-server is not ready at port %d, and %d for routes\n", s.Port, s.ClusterPort)
		return 1
	}
	fmt.Println(ns.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends, or kills this process
	return 3
}

// external is a nats-server in a process of its own, always on the same port.
type external struct {
	natsSettings
	t     testing.TB
	on    *host // nil: this machine
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
}

func startExternal(t testing.TB) *external {
	e := &external{t: t, natsSettings: natsSettings{Dir: t.TempDir(), Port: natstest.FreePort(t)}}
	e.start()
	t.Cleanup(e.kill)
	return e
}

// startExternals starts three nats-servers that are one cluster, and waits until streams can be made there. With hosts,
// each server is on a host of its own, and the test is on the fourth.
func startExternals(t testing.TB, hosts ...*host) (all []*external, urls string) {
	t.Helper()
	var routes, list []string
	for i := range 3 {
		e := &external{t: t, natsSettings: natsSettings{Dir: t.TempDir(), Host: "127.0.0.1", Port: natstest.FreePort(t), Name: fmt.Sprintf("nats-%d", i), ClusterPort: natstest.FreePort(t)}}
		if hosts != nil {
			e.on, e.Host = hosts[i], hosts[i].ip
		}
		routes = append(routes, fmt.Sprintf("nats://%s:%d", e.Host, e.ClusterPort))
		all = append(all, e)
	}
	for _, e := range all {
		e.Routes = strings.Join(routes, ",")
		e.start()
		t.Cleanup(e.kill)
		list = append(list, e.url)
	}
	urls = strings.Join(list, ",")
	js := jetStream(t, dial(t, urls, from(hosts)...))
	eventually(t, "JetStream has a leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "TRY", Replicas: 3})
		return err == nil
	})
	if err := js.DeleteStream(t.Context(), "TRY"); err != nil {
		t.Fatal(err)
	}
	return all, urls
}

func (e *external) start() {
	e.t.Helper()
	e.cmd = exec.Command(os.Args[0])
	e.cmd.Stderr = os.Stderr
	stdin, stdout := startAs(e.t, e.cmd, e.on, asNATS, e.natsSettings)
	e.stdin = stdin
	line, err := stdout.ReadString('\n')
	if err != nil {
		e.t.Fatalf("nats-server did not start: %v", err)
	}
	e.url = strings.TrimSpace(line)
	if e.Port, err = strconv.Atoi(e.url[strings.LastIndexByte(e.url, ':')+1:]); err != nil {
		e.t.Fatal(err)
	}
}

// kill is kill -9.
func (e *external) kill() {
	_ = e.cmd.Process.Kill() // it may have ended
	_ = e.cmd.Wait()
	e.stdin.Close()
}

func (e *external) options(t testing.TB) node.Options {
	o := base(t)
	o.NATS = e.url
	return o
}

// settings are the options that a test passes to a node's process.
type settings struct {
	Data, Listen, NATS        string
	Name, Zone                string
	Partitions, Replicas      int
	Follow                    node.Follow
	Standbys                  int
	Linger                    time.Duration
	CheckpointEvery           time.Duration
	EmptyLogAfter             time.Duration
	HotJobs                   int
	LoadAhead                 time.Duration
	FreeForJobs, FreeForTicks uint64
	OutMaxBytes, LogMaxBytes  int64
	PersistAsync              bool
	Wrong                     time.Duration // how far its machine's clock is ahead
	Fault                     string        // file that says what goes wrong with its disk (faultyDisk)
	Stands                    bool          // its disk stands still from a SIGUSR1 to the next (standingDisk)
	Confined                  bool          // it uses only the servers in NATS, and none that these tell it of
	Mistaken                  bool          // its machine makes the newer build's mistake

	on     *host  // nil: this machine
	binary string // another build of this test; "": this one
}

func (s settings) options() node.Options {
	o := node.Options{
		Data: s.Data, Name: cmp.Or(s.Name, "test"), Zone: s.Zone, Replicas: s.Replicas, Listen: s.Listen, HTTP: "127.0.0.1:0", NATS: s.NATS, Partitions: s.Partitions,
		Follow: s.Follow, Standbys: s.Standbys, Linger: s.Linger,
		CheckpointEvery: s.CheckpointEvery, FreeForJobs: s.FreeForJobs, FreeForTicks: s.FreeForTicks, PersistAsync: s.PersistAsync,
		EmptyLogAfter: s.EmptyLogAfter, HotJobs: s.HotJobs, LoadAhead: s.LoadAhead, OutMaxBytes: s.OutMaxBytes, LogMaxBytes: s.LogMaxBytes,
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.FreeForJobs == 0 {
		o.FreeForJobs, o.FreeForTicks = 1, 1 // tests must not depend on how full the machine's disk is
	}
	if s.Confined {
		o.NATSOptions = []nats.Option{nats.IgnoreDiscoveredServers()}
	}
	return o
}

func runAsNode(encoded string) int {
	var s settings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // the test is gone
	}()
	if s.Wrong != 0 {
		var c wrongClock
		c.ahead.Store(int64(s.Wrong))
		node.SetWall(c.now)
		turn := make(chan os.Signal, 1)
		signal.Notify(turn, syscall.SIGUSR1)
		go func() {
			for range turn {
				c.turn()
			}
		}()
	}
	o := s.options()
	if s.Fault != "" {
		o.JobStore.FS = faultyDisk(s.Fault)
	}
	if s.Stands {
		o.LogStore.FS = standingDisk()
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := node.Run(ctx, o, func(r node.Ready) { _ = json.NewEncoder(os.Stdout).Encode(r) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a node in a process of its own.
type process struct {
	node.Ready
	began time.Time
	cmd   *exec.Cmd
	log   *logBuffer
}

// spawn starts a node and waits until it is ready; it fails when the node ends before.
func spawn(t testing.TB, s settings) (*process, error) {
	t.Helper()
	p := &process{cmd: exec.Command(cmp.Or(s.binary, os.Args[0])), log: &logBuffer{}, began: time.Now()}
	p.cmd.Stderr = p.log
	stdin, stdout := startAs(t, p.cmd, s.on, asNode, s)
	t.Cleanup(func() {
		stdin.Close()
		p.kill()
		if t.Failed() {
			t.Logf("the node's log:\n%s", p.log.important())
		}
	})
	line, err := stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.Ready)
	}
	if err != nil {
		werr := p.cmd.Wait()
		return p, fmt.Errorf("the node ended (%v): %s", werr, p.log.tail(1))
	}
	return p, nil
}

func mustSpawn(t testing.TB, s settings) *process {
	t.Helper()
	p, err := spawn(t, s)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.log.tail(40))
	}
	return p
}

// kill ends the process as kill -9 does. A second call does nothing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

func (p *process) terminate(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("a clean stop ended with %v\n%s", err, p.log.tail(40))
	}
}

// running is a node in this process.
type running struct {
	node.Ready
	log     *logBuffer
	readies chan node.Ready
	done    chan struct{}
	err     error
	cancel  context.CancelFunc
	data    string
}

func launch(t testing.TB, o node.Options) *running {
	r := &running{log: &logBuffer{}, data: o.Data, readies: make(chan node.Ready, 16), done: make(chan struct{})}
	o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = node.Run(ctx, o, func(ready node.Ready) { r.readies <- ready })
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		if t.Failed() {
			t.Logf("the node's log:\n%s", r.log.important())
		}
	})
	return r
}

// run starts a node in this process and waits until it is ready.
func run(t testing.TB, o node.Options) *running {
	t.Helper()
	r := launch(t, o)
	r.again(t)
	return r
}

// again waits until the node is ready, after its start or once more.
func (r *running) again(t testing.TB) {
	t.Helper()
	select {
	case r.Ready = <-r.readies:
	case <-r.done:
		t.Fatalf("the node ended: %v", r.err)
	}
}

// refused starts a node that must end by itself before it is ready, and returns its error.
func refused(t testing.TB, o node.Options) error {
	t.Helper()
	r := launch(t, o)
	eventually(t, "the node ends", func() bool {
		select {
		case <-r.readies:
			t.Fatal("the node became ready")
		case <-r.done:
			return true
		default:
		}
		return false
	})
	if r.err == nil {
		t.Fatal("the node ended without an error")
	}
	return r.err
}

func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	<-r.done
	if r.err != nil {
		t.Fatalf("a clean stop ended with %v", r.err)
	}
}

// logBuffer keeps what a node logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// important returns the lines of a log that matter if a test failed.
func (l *logBuffer) important() string {
	var lines []string
	for line := range strings.SplitSeq(l.String(), "\n") {
		if !strings.Contains(line, "level=INFO") || strings.Contains(line, "msg=recovered") || strings.Contains(line, "msg=publishing") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

func (l *logBuffer) tail(n int) string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// eventually waits for a condition that the machine's load may delay but not prevent.
var eventually = natstest.Eventually

func dial(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// from returns the options of a client that runs on the last of some hosts, and soon notices that a server is cut off.
// Without hosts there are none.
func from(hosts []*host) []nats.Option {
	if hosts == nil {
		return nil
	}
	return []nats.Option{
		nats.SetCustomDialer(hosts[len(hosts)-1]), nats.PingInterval(500 * time.Millisecond), nats.FlusherTimeout(time.Second),
	}
}

func client(t testing.TB, url string) *carillon.Client {
	t.Helper()
	return carillon.Connect(dial(t, url), carillon.WithTimeout(time.Minute))
}

func status(t testing.TB, c *carillon.Client) carillon.StatusReply {
	t.Helper()
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readyz asks a node whether it is ready, and why not.
func readyz(t testing.TB, url string) (ready bool, why string) {
	t.Helper()
	code, body := get(t, url+"/readyz")
	return code == http.StatusOK, body
}

// get reads a page of a node.
func get(t testing.TB, url string) (code int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func put(t testing.TB, c *carillon.Client, job carillon.Job, options ...carillon.CommandOption) carillon.JobReply {
	t.Helper()
	r, err := c.Put(t.Context(), job, options...)
	if err != nil {
		t.Fatalf("put %s: %v", job.ID, err)
	}
	return r
}

// fires puts a job with this id, and waits until it has fired and all outputs are stored: so its partition works.
func fires(t testing.TB, c *carillon.Client, id string) {
	t.Helper()
	put(t, c, carillon.Job{ID: id, Schedule: "@in 1ms"})
	eventually(t, id+" fires", func() bool {
		r, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return r.Status == carillon.StatusCompleted
	})
	eventuallyEach(t, c, "its outputs are stored", func(p carillon.PartitionStatus) bool { return p.Stopped != "" || p.Published == p.Outputs })
}

// eventuallyEach waits for a condition of each partition's status.
func eventuallyEach(t testing.TB, c *carillon.Client, what string, condition func(carillon.PartitionStatus) bool) {
	t.Helper()
	eventually(t, "of each partition: "+what, func() bool {
		for _, p := range status(t, c).Partitions {
			if !condition(p) {
				return false
			}
		}
		return true
	})
}

// countJobs counts the jobs of a status.
func countJobs(t testing.TB, c *carillon.Client, of carillon.Status) uint64 {
	t.Helper()
	return total(t, c, func(p carillon.PartitionStatus) uint64 { return p.Jobs[of] })
}

// total adds up a figure of all partitions.
func total(t testing.TB, c *carillon.Client, figure func(carillon.PartitionStatus) uint64) (sum uint64) {
	t.Helper()
	for _, p := range status(t, c).Partitions {
		sum += figure(p)
	}
	return sum
}

// in returns a job id that begins with name and belongs to a partition.
func in(partition int, name string) string { return idIn(partition, partitions, name) }

// idIn is in with another number of partitions.
func idIn(partition, partitions int, name string) string {
	for engine.PartitionOf(name, partitions) != partition {
		name += "-"
	}
	return name
}

// answered makes a request until it succeeds. While a stream gets its leader, no server may answer at all, so each try is brief.
func answered(t testing.TB, what string, request func(context.Context) error) {
	t.Helper()
	eventually(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return request(ctx) == nil
	})
}

// output is one message of an output stream.
type output struct {
	seq     uint64
	stored  time.Time
	number  uint64
	trigger *carillon.Trigger
	event   *carillon.Event
}

// forged is the header that marks messages in output streams that tests wrote.
const forged = "Forged"

// read calls message with each message that a stream has now.
func read(t testing.TB, nc *nats.Conn, name string, message func(jetstream.Msg, *jetstream.MsgMetadata)) {
	t.Helper()
	js := jetStream(t, nc)
	var stream jetstream.Stream
	var err error
	answered(t, "there is a leader to read "+name+" from", func(ctx context.Context) error {
		stream, err = js.Stream(ctx, name)
		return err
	})
	left := stream.CachedInfo().State.Msgs
	if left == 0 {
		return
	}
	var consumer jetstream.Consumer
	answered(t, "there is a leader of all to read "+name+" by", func(ctx context.Context) error {
		consumer, err = stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		return err
	})
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for ; left > 0; left-- {
		m, err := messages.Next()
		if err != nil {
			t.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		message(m, meta)
	}
}

// outputs reads all messages of an output stream, except forged ones.
func outputs(t testing.TB, nc *nats.Conn, partition int) (all []output) {
	t.Helper()
	names := carillon.DefaultNames()
	read(t, nc, names.OutStream(partition), func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		o := output{seq: meta.Sequence.Stream, stored: meta.Timestamp}
		if m.Headers().Get(forged) != "" {
			return
		}
		if _, err := fmt.Sscan(m.Headers().Get(carillon.HeaderOutput), &o.number); err != nil {
			t.Fatalf("message %d of partition %d has no output number", o.seq, partition)
		}
		if strings.HasPrefix(m.Subject(), names.Prefix+".event.") {
			e, err := carillon.ParseEvent(m.Data())
			if err != nil {
				t.Fatal(err)
			}
			o.event = &e
		} else {
			trigger, err := names.ParseTrigger(m.Subject(), m.Headers(), m.Data())
			if err != nil {
				t.Fatal(err)
			}
			o.trigger = &trigger
		}
		all = append(all, o)
	})
	return all
}

// allOutputs reads all output streams and checks for each that its output numbers ascend without gap or repeat,
// and that nothing is early.
func allOutputs(t testing.TB, nc *nats.Conn, partitions int) (all []output) {
	t.Helper()
	return checkOutputs(t, nc, partitions, func([]output) {})
}

// displacedOutputs is allOutputs for streams with foreign messages: there the output numbers need not ascend.
func displacedOutputs(t testing.TB, nc *nats.Conn, partitions int) (all []output) {
	t.Helper()
	return checkOutputs(t, nc, partitions, func(of []output) {
		slices.SortStableFunc(of, func(a, b output) int { return cmp.Compare(a.number, b.number) })
	})
}

func checkOutputs(t testing.TB, nc *nats.Conn, partitions int, order func([]output)) (all []output) {
	t.Helper()
	for p := range partitions {
		of := outputs(t, nc, p)
		order(of)
		checkStream(t, p, of)
		all = append(all, of...)
	}
	return all
}

func checkStream(t testing.TB, partition int, of []output) {
	t.Helper()
	bad := 0
	for i, o := range of {
		if o.number != uint64(i+1) && bad < 5 {
			t.Errorf("partition %d: message %d of %d has output number %d", partition, i+1, len(of), o.number)
			bad++
		}
		if o.trigger != nil && o.stored.Before(o.trigger.Scheduled) {
			t.Errorf("%s was stored at %s, early", o.trigger.ID, o.stored.Format(carillon.TimeFormat))
		}
	}
}

// copyTree copies a directory, which may be in use. Files that vanish meanwhile are left out.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rest)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// replace replaces the directory dir by a copy of the directory by.
func replace(t testing.TB, dir, by string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	copyTree(t, by, dir)
}

// contains tells whether some line of a log has all of the words.
func contains(l *logBuffer, words ...string) bool { return line(l, words...) != "" }

// line returns the first line of a log that has all of the words, or "".
func line(l *logBuffer, words ...string) string {
	for _, line := range lines(l, words...) {
		return line
	}
	return ""
}

// lines returns the lines of a log that have all of the words.
func lines(l *logBuffer, words ...string) (found []string) {
	for line := range strings.SplitSeq(l.String(), "\n") {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			found = append(found, line)
		}
	}
	return found
}

// lastTime is when the last of some lines was written.
func lastTime(t testing.TB, lines []string) time.Time {
	t.Helper()
	at, err := lineTime(lines[len(lines)-1])
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// lineTime is when a line of a log was written.
func lineTime(line string) (time.Time, error) {
	text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
	return time.Parse(time.RFC3339Nano, text)
}
