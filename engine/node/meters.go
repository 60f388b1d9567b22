package node

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/VictoriaMetrics/metrics"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// meters are the node's metrics. docs/operations.md says what to alert on.
type meters struct {
	set             *metrics.Set
	lateness        *metrics.PrometheusHistogram
	tickRound       *metrics.PrometheusHistogram
	appendTime      *metrics.PrometheusHistogram
	checkpointTime  *metrics.PrometheusHistogram
	checkpointPause *pauseMeter
	loadPause       *pauseMeter
	appended        *metrics.Counter
	appendedBytes   *metrics.Counter
	ticks           *metrics.Counter
	ticksFailed     *metrics.Counter
	lost            *metrics.Counter
	lostOutputs     *metrics.Counter
	blocksSynced    *metrics.Counter
	triggers        *metrics.Counter
	forced          *metrics.Counter
	events          *metrics.Counter
	recent          recent
}

// histogramBounds are the bounds of the buckets of all histograms, in seconds, from 0.1 ms to 100 s: the preferred numbers of ISO 3,
// ten to a decade. Neighbours differ by about a quarter, and so a quantile is known to a quarter of its value.
var histogramBounds = func() (bounds []float64) {
	for exponent := -4; exponent <= 1; exponent++ {
		for _, r10 := range []string{"1", "1.25", "1.6", "2", "2.5", "3.15", "4", "5", "6.3", "8"} {
			bound, err := strconv.ParseFloat(fmt.Sprintf("%se%d", r10, exponent), 64)
			if err != nil {
				panic(err)
			}
			bounds = append(bounds, bound)
		}
	}
	return append(bounds, 100)
}()

// newMeters makes the metrics of a process. running is the node that runs, or nil.
func newMeters(running func() *Node) *meters {
	s := metrics.NewSet()
	m := &meters{
		set:             s,
		lateness:        s.NewPrometheusHistogramExt("carillon_lateness_seconds", histogramBounds),
		tickRound:       s.NewPrometheusHistogramExt("carillon_tick_round_seconds", histogramBounds),
		appendTime:      s.NewPrometheusHistogramExt("carillon_log_append_seconds", histogramBounds),
		checkpointTime:  s.NewPrometheusHistogramExt("carillon_checkpoint_seconds", histogramBounds),
		checkpointPause: newPauseMeter(s, "checkpoint"),
		loadPause:       newPauseMeter(s, "load"),
		appended:        s.NewCounter("carillon_log_records_total"),
		appendedBytes:   s.NewCounter("carillon_log_bytes_total"),
		ticks:           s.NewCounter("carillon_ticks_total"),
		ticksFailed:     s.NewCounter("carillon_ticks_failed_total"),
		lost:            s.NewCounter("carillon_chain_lost_total"),
		lostOutputs:     s.NewCounter("carillon_outputs_lost_total"),
		blocksSynced:    s.NewCounter("carillon_output_blocks_synced_total"),
		triggers:        s.NewCounter(`carillon_triggers_total{kind="scheduled"}`),
		forced:          s.NewCounter(`carillon_triggers_total{kind="forced"}`),
		events:          s.NewCounter("carillon_events_total"),
	}
	m.refused(carillon.CodeLimitExceeded) // they are alerted on, so they must be there from 0 on
	m.ignored("malformed")
	m.ignoredRequests("old")
	m.addGauges(running)
	return m
}

// addGauges adds the gauges. They are read from the running node when the metrics are; 0 while none runs.
func (m *meters) addGauges(running func() *Node) {
	gauge := func(name string, of func(*Node) float64) {
		m.set.NewGauge(name, func() float64 {
			if n := running(); n != nil {
				return of(n)
			}
			return 0
		})
	}
	sumOf := func(name string, of func(*partition) float64) {
		gauge(name, func(n *Node) (total float64) {
			for _, p := range n.partitions {
				p.mu.Lock()
				total += of(p)
				p.mu.Unlock()
			}
			return total
		})
	}
	sum := func(name string, of func(engine.Stats) float64) {
		sumOf(name, func(p *partition) float64 { return of(p.machine.Stats()) })
	}
	sum("carillon_jobs", func(s engine.Stats) float64 { return float64(s.Jobs) })
	sum("carillon_jobs_hot", func(s engine.Stats) float64 { return float64(s.Hot) })
	sum("carillon_jobs_cold", func(s engine.Stats) float64 { return float64(max(0, s.Jobs-s.Hot)) })
	sumOf("carillon_jobs_loaded_total", func(p *partition) float64 { return float64(p.loaded().all) })
	sumOf("carillon_jobs_loaded_late_total", func(p *partition) float64 { return float64(p.loaded().late) })
	sumOf("carillon_jobs_memory_bytes", func(p *partition) float64 { return float64(p.machine.Memory()) })
	gauge("carillon_loaded_ahead_seconds", func(n *Node) float64 { return n.loadedAhead().Seconds() })
	sum("carillon_jobs_dirty", func(s engine.Stats) float64 { return float64(s.Dirty) })
	sum("carillon_jobs_completed", func(s engine.Stats) float64 { return float64(s.Completed) })
	sum("carillon_wheel_timers", func(s engine.Stats) float64 { return float64(s.Timers) })
	sum("carillon_ready", func(s engine.Stats) float64 { return float64(s.Ready) })
	sum("carillon_outbox_outputs", func(s engine.Stats) float64 { return float64(s.Made - s.Acked.Output) })
	sum("carillon_outbox_bytes", func(s engine.Stats) float64 { return float64(s.Outbox) })
	gauge("carillon_log_lag_records", func(n *Node) float64 {
		applied := n.applied.Load()
		return float64(max(n.head.Load(), applied) - applied)
	})
	gauge("carillon_checkpoint_age_seconds", func(n *Node) (age float64) {
		for _, p := range n.partitions {
			if at := p.checkpointAt.Load(); at > 0 {
				age = max(age, (n.clock.running() - time.Duration(at)).Seconds())
			}
		}
		return age
	})
	gauge(`carillon_requests_ignored_total{reason="dropped"}`, func(n *Node) float64 { return float64(n.requests.dropped()) })
	gauge("carillon_tick_lag_seconds", func(n *Node) float64 { return n.tickLag().Seconds() })
	gauge("carillon_clock_offset_seconds", func(n *Node) float64 { return n.clock.machineOffset().Seconds() })
	gauge("carillon_partitions_stopped", func(n *Node) float64 { return float64(n.stoppedHere()) })
	gauge("carillon_partitions_followed", func(n *Node) float64 { return float64(len(n.followed())) })
	gauge("carillon_foreign_outputs", func(n *Node) (foreign float64) {
		for _, p := range n.partitions {
			p.out.Lock()
			foreign += float64(p.foreign)
			p.out.Unlock()
		}
		return foreign
	})
	gauge("carillon_outputs_missing", func(n *Node) (missing float64) {
		for _, p := range n.partitions {
			p.out.Lock()
			if p.serving {
				missing += float64(p.missing.outputs)
			}
			p.out.Unlock()
		}
		return missing
	})
}

// loadedAhead is how far ahead of now all jobs that come due are in memory, in the partition where that is least. It is at most
// LoadAhead, also if all jobs are in memory.
func (n *Node) loadedAhead() time.Duration {
	ahead, now := n.o.LoadAhead, n.clock.ms()
	for _, p := range n.partitions {
		p.mu.Lock()
		for _, r := range p.machine.LoadCursors() {
			ahead = min(ahead, max(0, time.Duration(min(r.End().Due-now, n.o.LoadAhead.Milliseconds()))*time.Millisecond))
		}
		p.mu.Unlock()
	}
	return ahead
}

// tickLag is the greatest lag of all partitions.
func (n *Node) tickLag() (lag time.Duration) {
	now := n.clock.ms()
	for _, p := range n.partitions {
		p.mu.Lock()
		lag = max(lag, p.lag(now))
		p.mu.Unlock()
	}
	return lag
}

// lag is for how long the earliest thing that is due has waited for a tick; 0 if nothing is due. Its caller holds mu.
func (p *partition) lag(now int64) time.Duration {
	at, ok := p.machine.DueSince()
	if !ok {
		return 0
	}
	return max(0, time.Duration(now-at)*time.Millisecond)
}

// late notes for some triggers how long after their due time they were known to be stored, ns.
func (m *meters) late(ns int64, triggers int) {
	for range triggers {
		m.lateness.Update(float64(ns) / 1e9)
	}
	m.recent.record(ns/1000, triggers)
}

// recent holds the lateness of the last one to two minutes, µs.
type recent struct {
	mu        sync.Mutex
	now, past *hdrhistogram.Histogram
	turned    time.Time
}

const recentSpan = time.Minute

func (r *recent) record(us int64, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	_ = r.now.RecordValues(min(max(us, 0), r.now.HighestTrackableValue()), int64(n)) // within bounds
}

func (r *recent) turn() {
	if age := time.Since(r.turned); r.now == nil || age > recentSpan {
		if r.past, r.turned = r.now, time.Now(); age > 2*recentSpan {
			r.past = nil
		}
		r.now = hdrhistogram.New(0, (24 * time.Hour).Microseconds(), 3)
	}
}

func (m *meters) latenessSummary() *carillon.Lateness {
	r := &m.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	h := hdrhistogram.Import(r.now.Export())
	if r.past != nil {
		h.Merge(r.past)
	}
	if h.TotalCount() == 0 {
		return nil
	}
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return &carillon.Lateness{Count: uint64(h.TotalCount()), P50: ms(50), P99: ms(99), P999: ms(99.9), Max: float64(h.Max()) / 1000}
}

func (m *meters) synced(d time.Duration, records, bytes int) {
	m.appendTime.Update(d.Seconds())
	m.appended.Add(records)
	m.appendedBytes.Add(bytes)
}

// listener counts what a partition's machine does. Several nodes apply the same records, and only one should count commands and outputs:
// the one where counts returns true.
func (m *meters) listener(partition int, counts func() bool) engine.Listener {
	type outcome struct {
		verb string
		code carillon.Code
	}
	commands := make(map[outcome]*metrics.Counter) // because a look-up by name is slow. Needs no lock: the machine has one caller at a time
	for _, reason := range skipReasons {
		m.skipped(partition, reason) // from 0 on: a rate does not show the first skipped fires if the counter begins with them
	}
	return engine.Listener{
		Command: func(verb string, code carillon.Code) {
			if !counts() {
				return
			}
			counter := commands[outcome{verb, code}]
			if counter == nil {
				result := strconv.Quote(string(cmp.Or(code, "ok")))
				counter = m.set.GetOrCreateCounter(`carillon_commands_total{verb=` + strconv.Quote(verb) + `,result=` + result + `}`)
				commands[outcome{strings.Clone(verb), code}] = counter
			}
			counter.Inc()
		},
		Made: func(o *engine.Output) {
			if !counts() {
				return
			}
			switch o.Kind {
			case engine.OutputTrigger:
				m.triggers.Inc()
			case engine.OutputForced:
				m.forced.Inc()
			default:
				m.events.Inc()
			}
		},
		Skipped: func(reason string, n uint64) { // on every node, because each reports it in its status
			m.skipped(partition, reason).AddInt64(int64(n))
		},
		Garbage: func(reason string) { m.ignored(reason).Inc() },
	}
}

var skipReasons = []string{carillon.ReasonMisfire, carillon.ReasonExpired, carillon.ReasonPaused}

// refused counts the requests that were answered with an error.
func (m *meters) refused(code carillon.Code) *metrics.Counter {
	return m.set.GetOrCreateCounter(`carillon_requests_refused_total{code=` + strconv.Quote(string(code)) + `}`)
}

// ignoredRequests counts the requests that get no answer.
func (m *meters) ignoredRequests(reason string) *metrics.Counter {
	return m.set.GetOrCreateCounter(`carillon_requests_ignored_total{reason=` + strconv.Quote(reason) + `}`)
}

// ignored counts the records of the log that have no effect.
func (m *meters) ignored(reason string) *metrics.Counter {
	return m.set.GetOrCreateCounter(`carillon_log_ignored_total{reason=` + strconv.Quote(reason) + `}`)
}

func (m *meters) skipped(partition int, reason string) *metrics.Counter {
	return m.set.GetOrCreateCounter(fmt.Sprintf(`carillon_skipped_total{reason=%q,partition="%d"}`, reason, partition))
}

func (m *meters) write(w io.Writer) {
	m.set.WritePrometheus(w)
	metrics.WriteProcessMetrics(w)
}
