package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// The many clients of RunCommands are one process of their own, with a connection for each client. It reads
// its orders as lines of JSON from standard input, and answers each on standard output:
//
//	clientsStart → clientsReport   connected
//	clientsOrder → clientsReport   …, the last of them with Done
//
// It ends when its input ends.
type clientsStart struct {
	Connections  int   `json:"connections"`
	PayloadBytes int   `json:"payload_bytes"`
	Due          int64 `json:"due"` // of the first job, unix ms
}

// clientsOrder is one command for each of N jobs.
type clientsOrder struct {
	Verb   carillon.Verb `json:"verb"`
	Prefix string        `json:"prefix"` // of the ids, which end with 0 … N-1
	N      int           `json:"n"`
	Round  int           `json:"round"`  // makes the payload of a put a new one
	Rate   int           `json:"rate"`   // commands a second whatever the answers; 0: a closed loop
	Window int           `json:"window"` // of a closed loop: commands that each connection has under way
}

type clientsReport struct {
	Progress int     `json:"progress"` // answers so far
	Done     bool    `json:"done"`
	Seconds  float64 `json:"seconds"` // from the first command to the last answer
	Latency  string  `json:"latency"` // an encoded histogram of µs
	Refused  []int   `json:"refused"` // the jobs whose command was refused
	Refusal  string  `json:"refusal"` // the first refusal
}

// commandJob is the i-th job of a prefix: a one-shot that is not due while the run lasts.
func commandJob(prefix string, i, round int, due int64, payload []byte) carillon.Job {
	p := append([]byte(nil), payload...)
	if len(p) > 2 {
		p[1] = '0' + byte(round%10)
	}
	return carillon.Job{
		ID: prefix + strconv.Itoa(i), Topic: topic, Payload: p,
		Schedule: "@at " + time.UnixMilli(due+int64(i)).UTC().Format(carillon.TimeFormat),
	}
}

// Clients runs the process of the many clients. connect opens one connection.
func Clients(ctx context.Context, connect func() (*nats.Conn, error), names carillon.Names, in io.Reader, out io.Writer) (err error) {
	input, output := json.NewDecoder(in), json.NewEncoder(out)
	c := &clients{output: output}
	if err := input.Decode(&c.clientsStart); err != nil {
		return fmt.Errorf("bench: clients: %w", err)
	}
	for range c.Connections {
		nc, err := connect()
		if err != nil {
			return fmt.Errorf("bench: clients: %w", err)
		}
		defer nc.Close()
		p, err := newPipe(nc, names)
		if err != nil {
			return err
		}
		c.pipes = append(c.pipes, p)
	}
	if err := output.Encode(clientsReport{Done: true}); err != nil {
		return fmt.Errorf("bench: clients: %w", err)
	}
	for {
		var o clientsOrder
		if err := input.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("bench: clients: %w", err)
		}
		if err := c.carryOut(ctx, o); err != nil {
			return err
		}
	}
}

type clients struct {
	clientsStart
	pipes  []*pipe
	output *json.Encoder
}

// clientsTell is how often the process reports its progress.
const clientsTell = 200 * time.Millisecond

func (c *clients) carryOut(ctx context.Context, o clientsOrder) error {
	r := &clientsRun{clientsOrder: o, clients: c, payload: payloadOf(c.PayloadBytes), latency: make([]*hdrhistogram.Histogram, len(c.pipes))}
	for i := range r.latency {
		r.latency[i] = newHistogram()
	}
	ended := make(chan error, 1)
	began := time.Now()
	r.last.Store(began.UnixNano())
	go func() {
		err := r.run(ctx, began)
		if err == nil {
			err = drainAll(ctx, c.pipes)
		}
		ended <- err
	}()
	t := time.NewTicker(clientsTell)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := c.output.Encode(clientsReport{Progress: int(r.answers.Load())}); err != nil {
				return fmt.Errorf("bench: clients: %w", err)
			}
			continue
		case err := <-ended:
			if err != nil {
				return err
			}
		}
		break
	}
	all := newHistogram()
	for _, h := range r.latency {
		all.Merge(h)
	}
	latency, err := encode(all)
	if err != nil {
		return err
	}
	report := clientsReport{
		Progress: o.N, Done: true, Seconds: time.Unix(0, r.last.Load()).Sub(began).Seconds(), Latency: latency,
		Refused: r.refused, Refusal: r.refusal,
	}
	if err := c.output.Encode(report); err != nil {
		return fmt.Errorf("bench: clients: %w", err)
	}
	return nil
}

// clientsRun carries out one order.
type clientsRun struct {
	clientsOrder
	*clients
	payload []byte
	latency []*hdrhistogram.Histogram // by pipe: each is written to by that pipe's reader alone
	answers atomic.Int64
	last    atomic.Int64 // when the last answer came, unix ns
	next    atomic.Int64 // the next job of a closed loop

	mu      sync.Mutex
	refused []int
	refusal string
}

func (r *clientsRun) run(ctx context.Context, began time.Time) error {
	if r.Rate > 0 {
		gap := time.Second / time.Duration(r.Rate)
		return sendOnTime(ctx, r.N, func(i int) time.Time { return began.Add(time.Duration(i) * gap) }, func(i int, at time.Time) error {
			return r.send(i%len(r.pipes), i, at, func() {})
		})
	}
	var sending sync.WaitGroup
	failed := make(chan error, len(r.pipes))
	for n := range r.pipes {
		sending.Go(func() {
			room := make(chan struct{}, r.Window)
			for {
				if err := acquireSlot(ctx, room, answerPatience); err != nil {
					failed <- err
					return
				}
				i := int(r.next.Add(1)) - 1
				if i >= r.N {
					return
				}
				if err := r.send(n, i, time.Now(), func() { <-room }); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	sending.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

// send gives a command to the n-th pipe. Its latency counts from at, which in an open loop is the time at which it
// was to be sent.
func (r *clientsRun) send(n, i int, at time.Time, answered func()) error {
	var body []byte
	if r.Verb == carillon.VerbPut {
		j := commandJob(r.Prefix, i, r.Round, r.Due, r.payload)
		body = carillon.AppendPut(nil, &j, nil)
	}
	return r.pipes[n].send(r.Verb, r.Prefix+strconv.Itoa(i), body, func(a answer) {
		now := time.Now()
		answered()
		r.answers.Add(1)
		for last := r.last.Load(); last < now.UnixNano() && !r.last.CompareAndSwap(last, now.UnixNano()); last = r.last.Load() {
		}
		h := r.latency[n]
		if a.err == nil {
			record(h, int64(now.Sub(at)))
			return
		}
		_ = h.RecordValue(h.HighestTrackableValue()) // a refusal must not count as a short latency
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.refused = append(r.refused, i); r.refusal == "" {
			r.refusal = a.err.Error()
		}
	})
}

// clientsProcess is a process of Clients, seen from the run.
type clientsProcess struct{ *process }

// startClients starts the process and waits until it is connected.
func startClients(ctx context.Context, command []string, url string, start clientsStart) (*clientsProcess, error) {
	started, err := startProcess(ctx, command, url)
	if err != nil {
		return nil, err
	}
	p := &clientsProcess{started}
	if _, err := p.ask(start, func(int) {}); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// ask gives the process an order and waits until it is carried out.
func (p *clientsProcess) ask(order any, progress func(done int)) (r clientsReport, err error) {
	if err := p.send(order); err != nil {
		return r, err
	}
	for {
		r = clientsReport{}
		if err := p.receive(&r); err != nil {
			return r, fmt.Errorf("bench: the clients ended without a report: %w", err)
		}
		if r.Done {
			return r, nil
		}
		progress(r.Progress)
	}
}
