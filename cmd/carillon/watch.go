package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newWatchCommand(a *app) *cobra.Command {
	var w watcher
	c := &cobra.Command{
		Use:   "watch",
		Short: "Show triggers as they fire, with their lateness",
		Long: `Show triggers as they fire: due time, lateness (from the due millisecond to the receipt here, by this
machine's clock), job, topic and the beginning of the payload. It looks only: nothing is acknowledged or
taken from a worker, and what fires before it begins is not shown. Ctrl-C ends it.`,
		Example: `  carillon watch
  carillon watch --topic 'billing.>' --events
  carillon watch --json --count 10`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := notZero(c, "count"); err != nil {
				return err
			}
			w.app = a
			return w.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&w.topic, "topic", ">", "only triggers of this `topic`, which may hold wildcards")
	f.BoolVar(&w.events, "events", false, "show events, too: rejected commands, skipped fires, completed jobs")
	f.UintVar(&w.count, "count", 0, "end after this `number` of triggers")
	return c
}

type watcher struct {
	app    *app
	topic  string
	events bool
	count  uint

	mu   sync.Mutex // two loops write lines
	seen uint
}

func (w *watcher) run(ctx context.Context) error {
	if err := optionError(carillon.CheckTopicFilter(w.topic)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nc, client, err := w.app.connect(ctx, append(w.app.tellConnection(ctx, &w.mu), reconnectForever...)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	triggers, err := client.Watch(ctx, w.topic)
	if err != nil {
		return err
	}
	var loops sync.WaitGroup
	if w.events {
		events, err := client.WatchEvents(ctx)
		if err != nil {
			return err
		}
		loops.Go(func() { cancel(follow(events, w.showEvent)) })
	}
	if !w.app.json {
		if err := w.app.line("%-12s  %10s  %-24s %-16s %s", "due", "lateness", "job", "topic", "payload"); err != nil {
			return err
		}
	}
	loops.Go(func() { cancel(follow(triggers, w.showTrigger)) })
	loops.Wait()
	// If a signal ended ctx, the cause is the signal's own error, which is a context.Canceled, too.
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && cause != errSeen {
		return cause
	}
	return nil
}

// errSeen ends a watch that has shown as many triggers as the user asked for.
var errSeen = errors.New("enough triggers seen")

// follow shows items until the sequence ends or show returns an error.
func follow[T any](all iter.Seq2[T, error], show func(*T) error) error {
	for v, err := range all {
		if err == nil {
			err = show(&v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) showTrigger(t *carillon.Trigger) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count > 0 && w.seen == w.count {
		return errSeen
	}
	var err error
	if w.app.json {
		err = w.app.marshal(newTriggerLine(t))
	} else {
		err = showTrigger(w.app.stdout, t)
	}
	if err != nil {
		return err
	}
	if w.seen++; w.seen == w.count {
		return errSeen
	}
	return nil
}

func (w *watcher) showEvent(e *carillon.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.app.json {
		return w.app.raw(e.AppendJSON(nil))
	}
	what := ""
	switch e.Kind {
	case carillon.EventRejected:
		what = fmt.Sprintf("%s: %s", excerpt([]byte(e.Verb), 32), excerpt(fmt.Append(nil, e.Error), 500)) // text from any command
	case carillon.EventSkipped:
		what = fmt.Sprintf("%s, %s: %s to %s", count(e.Count, "fire"), excerpt([]byte(e.Reason), 32), formatTime(e.First), formatTime(e.Last))
	}
	return w.app.line("%s  %10s  %-24s %s", e.Time.Local().Format("15:04:05.000"), excerpt([]byte(e.Kind), 32), excerpt([]byte(e.Job), 64), what)
}
