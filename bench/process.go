package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// process is a process of a run's own. It gets orders and answers them in JSON, one object after the other.
type process struct {
	ctx context.Context // it is killed when this ends
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startProcess starts a process. The URL is added to its command. Ctrl-C does not reach it: the run says that it is interrupted, and ends it.
func startProcess(ctx context.Context, command []string, url string) (*process, error) {
	p := &process{ctx: ctx, cmd: exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], url)...)}
	endWithUs(p.cmd)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", command[0], err)
	}
	return p, nil
}

func (p *process) send(v any) error {
	if err := json.NewEncoder(p.in).Encode(v); err != nil {
		return fmt.Errorf("bench: %s does not listen: %w", p.cmd.Path, err)
	}
	return nil
}

func (p *process) receive(v any) error {
	err := p.out.Decode(v)
	if err != nil && p.ctx.Err() != nil {
		err = p.ctx.Err()
	}
	return err
}

// stop ends the process, whether it has answered or not.
func (p *process) stop() {
	p.in.Close()
	finish(p.cmd)
}

// finish ends a child that has nothing left to lose. It ignores errors: Kill fails only if the child has ended, and
// Wait says only how it ended, either killed or by an error that its answers, or their end, have shown already.
func finish(child *exec.Cmd) {
	_ = child.Process.Kill()
	_ = child.Wait()
}

// workerProcess is a process of Work, seen from the run.
type workerProcess struct {
	*process
	ready workerReady
}

// startWorker starts a worker's process and waits until it listens. It fills in the engine's number of partitions.
func (e *engine) startWorker(ctx context.Context, start workerStart) (*workerProcess, error) {
	p, err := startProcess(ctx, e.Worker, e.url)
	if err != nil {
		return nil, err
	}
	w := &workerProcess{process: p}
	start.Partitions = e.partitions
	if err = w.send(start); err == nil {
		if err = w.receive(&w.ready); err != nil {
			err = fmt.Errorf("bench: the worker did not start: %w", err)
		}
	}
	if err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

func (w *workerProcess) report() (r workerReport, err error) {
	if err := w.receive(&r); err != nil {
		return r, fmt.Errorf("bench: the worker ended without a report: %w", err)
	}
	return r, nil
}

// pauses ends a process of pauseWork, and returns its report.
func (w *workerProcess) pauses() (p pauses, err error) {
	if err := w.in.Close(); err != nil {
		return p, fmt.Errorf("bench: the floor of pauses: %w", err)
	}
	if err := w.receive(&p); err != nil {
		return p, fmt.Errorf("bench: the floor of pauses: %w", err)
	}
	return p, nil
}
