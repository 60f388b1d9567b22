package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Service says which engine is measured: one that is started for the run, or one that runs already.
type Service struct {
	// Command runs an engine; --data, --http, and --listen or --nats are added to it. It must print the ready line of
	// `carillon serve`. Default: this binary's own serve.
	Command []string
	Data    string // directory in which the data directory is made, and removed afterwards; default the system's for temporary files
	Server  string // URL of a service that runs already; then nothing is started
	// NATS is the URL of a NATS server that runs already, for the engine that is started. It must have none of the streams of
	// Names: the run makes them there, and removes them again.
	NATS string
	// Worker runs Work in a process of its own; the engine's URL is added to it. Default: this binary's own "bench worker --server".
	Worker []string

	Connect func(url string) (*nats.Conn, error) // default nats.Connect
	Names   carillon.Names                       // default those of the prefix "carillon"
}

func (s Service) withDefaults() (Service, error) {
	exe, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	if len(s.Command) == 0 {
		s.Command = []string{exe, "serve"}
	}
	if len(s.Worker) == 0 {
		s.Worker = []string{exe, "bench", "worker", "--server"}
	}
	if s.Data == "" {
		s.Data = os.TempDir()
	}
	if s.Connect == nil {
		s.Connect = func(url string) (*nats.Conn, error) {
			return nats.Connect(url, append(Reconnect(), nats.Name("carillon bench"))...)
		}
	}
	if s.Names == (carillon.Names{}) {
		s.Names = carillon.DefaultNames()
	}
	return s, nil
}

// Reconnect returns the options for connections that outlive a kill of the engine, such as those of RunSoak.
// By default nats.go waits two seconds before it reconnects, and the run would measure that.
func Reconnect() []nats.Option {
	return []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(0, 0)}
}

// engine is a service that can be reached.
type engine struct {
	Service
	url        string
	http       string // URL of its metrics; "" for a service that runs already
	partitions int
	dir        string   // its data directory, with what it said on standard error in bench.log
	own        *scratch // the same directory, if the run made it
	cmd        *exec.Cmd
	exited     chan error
	gone       chan struct{} // closed when the process has ended
	reserved   bool          // the streams on the NATS are the run's
}

// startTimeout is more than a start with ten million jobs takes. A start ends earlier if the engine does.
const startTimeout = 15 * time.Minute

// open starts an engine, or connects to one that runs. close ends it.
func (s Service) open(ctx context.Context) (*engine, error) {
	e := &engine{Service: s, url: s.Server}
	if s.Server != "" {
		nc, err := s.Connect(s.Server)
		if err != nil {
			return nil, fmt.Errorf("bench: connect to %s: %w", s.Server, err)
		}
		defer nc.Close()
		status, err := carillon.Connect(nc, carillon.WithNames(s.Names)).Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		e.partitions = len(status.Partitions)
		return e, nil
	}
	own, err := makeScratch(s.Data)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	// With too little room an engine accepts no jobs, or does not even start, but waits. Not every system says how much room there is.
	const least = node.DefaultFreeForJobs
	if free, err := streams.FreeBytes(own.dir); err == nil && free < least {
		return nil, errors.Join(fmt.Errorf("bench: %d MiB are free in %s, and an engine takes new jobs where %d are", free>>20, s.Data, least>>20), own.remove())
	}
	e.dir, e.own = own.dir, own
	if s.NATS != "" {
		if err := e.reserve(ctx); err != nil {
			return nil, errors.Join(err, own.remove())
		}
	}
	if err := e.start(ctx, "127.0.0.1:0", nil); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// start starts the engine's process and waits until that says that it is ready. began, if not nil, is called with
// the time at which the process was started.
func (e *engine) start(ctx context.Context, listen string, began func(time.Time)) error {
	args := append(e.Command[1:len(e.Command):len(e.Command)], "--data", filepath.Join(e.dir, "data"), "--http", "127.0.0.1:0")
	if e.NATS != "" {
		args = append(args, "--nats", e.NATS)
	} else {
		args = append(args, "--listen", listen)
	}
	e.cmd = exec.Command(e.Command[0], args...)
	endWithUs(e.cmd)
	log, err := os.OpenFile(filepath.Join(e.dir, "bench.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer log.Close()
	e.cmd.Stderr = log
	// The pipe is ours, not exec.Cmd's: Wait would close that before all is read.
	out, child, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	e.cmd.Stdout = child
	if began != nil {
		began(time.Now())
	}
	err = e.cmd.Start()
	child.Close()
	if err != nil {
		out.Close()
		e.cmd = nil
		return fmt.Errorf("bench: start the engine: %w", err)
	}
	cmd, exited, gone := e.cmd, make(chan error, 1), make(chan struct{})
	e.exited, e.gone = exited, gone
	go func() {
		exited <- cmd.Wait()
		close(gone)
	}()
	ready := make(chan error, 1)
	go func() {
		defer out.Close()
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		if err == nil {
			err = e.parseReady(line)
		}
		ready <- err
		_, _ = io.Copy(io.Discard, lines) // whatever else it prints, until it ends
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case err = <-ready:
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		err = fmt.Errorf("not ready within %s", startTimeout)
	}
	if err != nil {
		return fmt.Errorf("bench: the engine did not start: %w; it said:\n%s", err, e.logTail())
	}
	return nil
}

// parseReady reads "carillon ready nats=URL http=URL partitions=N".
func (e *engine) parseReady(line string) error {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "carillon ready ")
	if !ok {
		return fmt.Errorf("its first line is %q", line)
	}
	for word := range strings.FieldsSeq(rest) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "nats":
			e.url = value
		case "http":
			e.http = value
		case "partitions":
			n, err := strconv.Atoi(value)
			if err != nil {
				return fmt.Errorf("its ready line is %q", line)
			}
			e.partitions = n
		}
	}
	if e.url == "" || e.partitions == 0 {
		return fmt.Errorf("its ready line is %q", line)
	}
	if e.NATS != "" {
		e.url = e.NATS // the ready line leaves out its secrets
	}
	return nil
}

// cause is the engine's log from the beginning of a panic on or, without a panic, the log's end.
func (e *engine) cause() string {
	b, err := os.ReadFile(filepath.Join(e.dir, "bench.log"))
	if err != nil {
		return err.Error()
	}
	for _, begin := range []string{"\npanic: ", "\nfatal error: "} {
		if i := bytes.Index(b, []byte(begin)); i >= 0 {
			return string(b[i+1 : min(len(b), i+8000)])
		}
	}
	return e.logTail()
}

// logTail is the end of the engine's own log.
func (e *engine) logTail() string {
	b, err := os.ReadFile(filepath.Join(e.dir, "bench.log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// kill is kill -9, and waits until the process is gone.
func (e *engine) kill() error {
	if err := e.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("bench: kill the engine: %w", err)
	}
	<-e.exited // "signal: killed" is what was asked for
	e.cmd = nil
	return nil
}

// close ends the process and removes its directory.
func (e *engine) close() error {
	var err error
	if e.cmd != nil {
		err = e.cmd.Process.Signal(syscall.SIGTERM)
		switch {
		case errors.Is(err, os.ErrProcessDone): // it ended although nobody asked it to
			err = fmt.Errorf("bench: the engine ended by itself (%v); it said:\n%s", <-e.exited, e.cause())
		case err == nil:
			// Kill fails only if the process has ended, which is what we wait for.
			patience := time.AfterFunc(30*time.Second, func() { _ = e.cmd.Process.Kill() })
			if exit := <-e.exited; exit != nil {
				err = fmt.Errorf("bench: the engine ended with %w; it said:\n%s", exit, e.logTail())
			}
			patience.Stop()
		}
		e.cmd = nil
	}
	if e.reserved {
		err = errors.Join(err, e.removeStreams())
	}
	if e.own != nil {
		err = errors.Join(err, e.own.remove())
	}
	return err
}

// reserve refuses a NATS on which a service has streams already, even if that service does not run now.
func (e *engine) reserve(ctx context.Context) error {
	return e.atNATS(func(js jetstream.JetStream) error {
		found, err := e.streams(ctx, js)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("it has %d streams of %s, such as %s: take a prefix of the run's own, or remove them if they are of a run that was killed", len(found), e.Names.Prefix, found[0])
		}
		e.reserved = err == nil
		return err
	})
}

// removeStreams leaves the NATS as it was.
func (e *engine) removeStreams() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also if the run's context has ended
	defer cancel()
	return e.atNATS(func(js jetstream.JetStream) error {
		found, err := e.streams(ctx, js)
		for _, name := range found {
			err = errors.Join(err, js.DeleteStream(ctx, name))
		}
		return err
	})
}

func (e *engine) atNATS(do func(jetstream.JetStream) error) error {
	nc, err := e.Connect(e.NATS)
	if err == nil {
		defer nc.Close()
		var js jetstream.JetStream
		if js, err = jetstream.New(nc); err == nil {
			err = do(js)
		}
		// A request that the user has no right to make gets no answer.
		if refused := nc.LastError(); err != nil && errors.Is(refused, nats.ErrPermissionViolation) {
			err = fmt.Errorf("%w: a run is the engine, its clients and its workers in one, and needs a user with all rights of the account", refused)
		}
	}
	if err != nil {
		return fmt.Errorf("bench: the NATS that the engine is to use: %w", err)
	}
	return nil
}

// serviceStream matches what follows the service's own name in the names of its streams and buckets.
var serviceStream = regexp.MustCompile(`^(LOG|OUT_[0-9]+|TOPIC_.+|NODES|STATE)$`)

// streams returns the names of the service's streams and buckets, but not those of a service whose prefix begins with this one's, as
// bench_2 begins with bench: somebody may have started such a service beside the run.
func (e *engine) streams(ctx context.Context, js jetstream.JetStream) (found []string, err error) {
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		bare := strings.TrimPrefix(strings.TrimPrefix(name, "KV_"), "OBJ_")
		rest, own := strings.CutPrefix(bare, e.Names.Stream+"_")
		if own && serviceStream.MatchString(rest) {
			found = append(found, name)
		}
	}
	return found, names.Err()
}

// usage is what the engine's process has used so far.
type usage struct {
	known       bool // false if the system does not say, or if the process is not ours: then the rest is zero
	cpu         time.Duration
	residentMiB float64
	peakMiB     float64 // the greatest resident size
	wroteMiB    float64 // to the disk
}

func (e *engine) usage() (u usage) {
	if e.cmd == nil {
		return u
	}
	proc := "/proc/" + strconv.Itoa(e.cmd.Process.Pid)
	b, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return u
	}
	// Fields 14 and 15 of /proc/<pid>/stat (proc(5)): user and system time in ticks, which are hundredths of a second
	// for programs on Linux. They are counted from behind the name, which may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) > 13 {
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		u.cpu = time.Duration(user+system) * 10 * time.Millisecond
	}
	mib := func(name string) float64 {
		kb, _ := strconv.Atoi(strings.TrimSuffix(field(proc+"/status", name), " kB"))
		return float64(kb) / 1024
	}
	u.known, u.residentMiB, u.peakMiB = true, mib("VmRSS"), mib("VmHWM")
	bytes, _ := strconv.Atoi(field(proc+"/io", "write_bytes"))
	u.wroteMiB = float64(bytes) / (1 << 20)
	return u
}

// validateOwn refuses settings of an engine that runs already.
func (s Service) validateOwn(partitions int, persistAsync bool) error {
	switch {
	case partitions < 0 || partitions > streams.MaxPartitions:
		return fmt.Errorf("bench: Partitions is %d, must be 1 to %d", partitions, streams.MaxPartitions)
	case s.Server != "" && partitions != 0:
		return errors.New("bench: Partitions is of an engine that is started for the run; one that runs already has its own")
	case s.Server != "" && persistAsync:
		return errors.New("bench: PersistAsync is of an engine that is started for the run; one that runs already has its own")
	}
	return nil
}

const persistAsyncFlag = "--persist-async"

// unbounded returns the service with an engine that keeps all its outputs, so that all can be counted.
func (s Service) unbounded(partitions int, persistAsync bool) Service {
	s.Command = append(slices.Clone(s.Command), "--out-max-bytes", "-1", "--log-max-bytes", "-1")
	if partitions > 0 {
		s.Command = append(s.Command, "--partitions", strconv.Itoa(partitions))
	}
	if persistAsync {
		s.Command = append(s.Command, persistAsyncFlag)
	}
	return s
}
