package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// web answers HTTP as long as the process runs, even while its node is restarted.
type web struct {
	meters   *meters
	refused  *metrics.Counter // connections that were closed because there were too many
	ready    atomic.Bool
	mu       sync.Mutex
	problems []string
	node     *Node // whose gauges are shown; nil while there is none
}

func newWeb() *web {
	w := &web{}
	w.meters = newMeters(w.running)
	w.refused = w.meters.set.NewCounter("carillon_http_refused_total")
	w.meters.set.NewGauge("carillon_problems", func() float64 { return float64(len(w.unready())) }) // also while no node runs
	return w
}

const (
	// maxHTTPConns is how many connections may be open at a time; further ones are closed. Each uses a file descriptor, of which the
	// process has a limited number.
	maxHTTPConns = 128
	// A client that stops in the middle of a request, does not read, or asks nothing must not keep its connection from others.
	httpReadTimeout  = 10 * time.Second // of a request and its body, which the library reads although nobody needs it
	httpWriteTimeout = time.Minute
	httpIdleTimeout  = time.Minute
	maxHTTPHeader    = 16 << 10 // bytes; a MiB of header names takes the core for 0.4 s
)

// listen serves HTTP on the address in the options until closed is called; url is "" if HTTP is off.
func (w *web) listen(o *Options) (url string, closed func() error, err error) {
	if o.HTTP == "off" {
		return "", func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", o.HTTP)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "", nil, fmt.Errorf("node: cannot serve health and metrics on %s (is another engine running there?): %w", o.HTTP, err)
	case err != nil:
		return "", nil, fmt.Errorf("node: cannot serve health and metrics on %s: %w", o.HTTP, err)
	}
	server := w.server(o)
	go server.Serve(listener)
	return "http://" + listener.Addr().String(), server.Close, nil
}

func (w *web) server(o *Options) *http.Server {
	var open atomic.Int64
	return &http.Server{
		Handler: w.handler(o.Profiles), MaxHeaderBytes: maxHTTPHeader,
		ReadTimeout: httpReadTimeout, WriteTimeout: httpWriteTimeout, IdleTimeout: httpIdleTimeout,
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxHTTPConns {
					w.refused.Inc()
					c.Close()
				}
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
}

func (w *web) running() *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

// serve sets the node whose gauges are shown; nil for none.
func (w *web) serve(n *Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = n
	if n == nil {
		w.ready.Store(false)
	}
}

func (w *web) problem(list ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = list
}

// handler serves
//
//	/healthz  200 while the process lives
//	/readyz   200 when jobs are taken and fired, else 503 with the reasons
//	/metrics  Prometheus text
//
// and, where profiles is set, Go's profiles at /debug/pprof/.
func (w *web) handler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		problems := w.unready()
		if len(problems) == 0 {
			fmt.Fprintln(rw, "ready")
			return
		}
		http.Error(rw, strings.Join(problems, "\n"), http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /metrics", func(rw http.ResponseWriter, _ *http.Request) { w.meters.write(rw) })
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (w *web) unready() []string {
	w.mu.Lock()
	problems, node := w.problems, w.node
	w.mu.Unlock()
	if node != nil && w.ready.Load() {
		return node.problems()
	}
	if len(problems) == 0 {
		problems = []string{"starting"}
	}
	return problems
}
