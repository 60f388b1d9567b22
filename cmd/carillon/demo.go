package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
)

func newDemoCommand(a *app) *cobra.Command {
	o := node.Options{Data: "carillon-data", Listen: "127.0.0.1:4222", HTTP: "127.0.0.1:8080"}
	cmd := ownFlags(&cobra.Command{
		Use:   "demo",
		Short: "Run the engine with sample jobs and show triggers as they fire",
		Long: `Run the engine with its embedded NATS server, put a handful of sample jobs, and show each trigger as it
arrives, with its lateness: from the due millisecond to the receipt by this process, over TCP.`,
		Example: `  carillon demo
  carillon demo --data /tmp/carillon-demo --listen 127.0.0.1:14222`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json {
				return usagef("--json is no flag of %q: 'carillon serve' and 'carillon watch' have it", cmd.CommandPath())
			}
			if err := refuseArchive(o.Data); err != nil {
				return err
			}
			if err := os.MkdirAll(o.Data, 0o750); err != nil {
				return err
			}
			logFile, err := os.OpenFile(filepath.Join(o.Data, "demo.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			defer logFile.Close()
			o.Logger = textLogger(logFile, slog.LevelInfo)
			return a.demo(cmd.Context(), o)
		},
	})
	hideFlags(cmd, "json")
	f := cmd.Flags()
	f.Var((*nonEmpty)(&o.Data), "data", "directory of everything the engine owns")
	f.Var((*address)(&o.Listen), "listen", "address for NATS clients; port 0 chooses one")
	f.Var((*addressOrOff)(&o.HTTP), "http", "address of /healthz, /readyz and /metrics; port 0 chooses one, off for none")
	return cmd
}

// demo runs the engine until ctx ends, with the sample jobs and a watcher beside it.
func (a *app) demo(ctx context.Context, o node.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shown := make(chan error, 1)
	started := false
	err := node.Run(ctx, o, func(r node.Ready) {
		if started { // the engine restarted within the process; its watcher goes on
			return
		}
		started = true
		fmt.Fprintln(a.stdout, readyText(r))
		go func() {
			defer cancel()
			err := a.showTriggers(ctx, r.NATS)
			if ctx.Err() != nil { // an interrupt at any moment, or the engine's own end, which says why
				err = nil
			}
			shown <- err
		}()
	})
	cancel()
	if started {
		return errors.Join(err, <-shown)
	}
	return err
}

// sampleJobs are what `make run` shows.
func sampleJobs(now time.Time) []carillon.Job {
	return []carillon.Job{
		{ID: "heartbeat", Schedule: "@every 1s", Topic: "demo.heartbeat", Payload: []byte(`{"ping":true}`)},
		{ID: "poll-partner", Schedule: "@every 2500ms", Topic: "demo.poll", Payload: []byte(`{"url":"https://partner.example/orders"}`)},
		{ID: "every-5s-by-cron", Schedule: "*/5 * * * * *", Zone: "Europe/Paris", Topic: "demo.cron", Priority: carillon.High},
		{ID: fmt.Sprintf("retry-order-%d", now.Unix()), Schedule: "@in 7s", Topic: "demo.retry", Payload: []byte(`{"order":1007}`)},
	}
}

func (a *app) showTriggers(ctx context.Context, url string) error {
	nc, err := nats.Connect(url, nats.Name("carillon demo"))
	if err != nil {
		return fmt.Errorf("demo: connect to %s: %w", url, err)
	}
	defer nc.Close()
	client := carillon.Connect(nc)
	triggers, err := client.Watch(ctx, ">")
	if err != nil {
		return err
	}
	for _, job := range sampleJobs(time.Now()) {
		if _, err := client.Put(ctx, job); err != nil {
			return fmt.Errorf("demo: put %s: %w", job.ID, err)
		}
	}
	fmt.Fprintf(a.stdout, `
Sample jobs are in. Put one of your own from another terminal:

  %[7]s -s %[1]s job put hello --every 2s --topic demo.hello --payload '{"hello":"world"}'
  nats -s %[1]s pub carillon.cmd.put.hello '{"schedule":"@every 2s","topic":"demo.hello","payload":{"hello":"world"}}'

Ctrl-C stops the engine; its jobs are kept and go on at the next start.

%[2]s  %10[3]s  %-24[4]s %-16[5]s %[6]s
`, url, "due         ", "lateness", "job", "topic", "payload", os.Args[0])
	for t, err := range triggers {
		if err != nil {
			return err
		}
		if err := showTrigger(a.stdout, &t); err != nil {
			return err
		}
	}
	return nil
}
