package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newTopicCommand(a *app) *cobra.Command {
	c := newTopicCreateCommand(a)
	c.Use = "topic TOPIC"
	c.Short = "Make a queue of one topic's triggers, for workers in any language"
	c.Example = `  carillon topic billing.renewals
  carillon topic list`
	c.Args = topicNoCommand
	c.AddCommand(newTopicCreateCommand(a), newTopicListCommand(a), newTopicDeleteCommand(a))
	return c
}

// commandWords are refused as topics by 'carillon topic': a user who types one means a command, and would get a stream.
var commandWords = []string{"add", "del", "get", "help", "info", "ls", "make", "new", "remove", "rm", "show"}

func topicNoCommand(c *cobra.Command, args []string) error {
	if len(args) > 0 && slices.Contains(commandWords, args[0]) {
		return fmt.Errorf("unknown command %q for %q; 'carillon topic create %s' makes a queue of that topic", args[0], c.CommandPath(), args[0])
	}
	return cobra.ExactArgs(1)(c, args)
}

func newTopicCreateCommand(a *app) *cobra.Command {
	var o carillon.TopicQueueOptions
	c := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Make a topic queue",
		Long: `Make a topic queue: one JetStream stream that takes in all triggers of a topic, which may hold wildcards,
from the output streams. Any NATS client works on it with a durable consumer. Where the queue is there
already nothing changes, unless it lacks partitions, as after a change of their number: it takes these in.`,
		Example: `  carillon topic create billing.renewals
  carillon topic create 'billing.>' --from-start --max-age 24h`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := optionError(carillon.CheckTopicFilter(args[0])); err != nil {
				return err
			}
			if err := notZero(c, "max-age", "max-bytes", "replicas"); err != nil {
				return err
			}
			if err := optionError(o.Validate()); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			var change carillon.TopicQueueChange
			o.Changed = func(c carillon.TopicQueueChange) { change = c }
			stream, err := client.CreateTopicQueue(c.Context(), args[0], o)
			if err != nil {
				return err
			}
			info, subject := stream.CachedInfo(), client.Names().TopicSubject(args[0])
			if a.json {
				return a.marshal(topicQueue{
					Stream: info.Config.Name, Subject: subject, Messages: info.State.Msgs, Bytes: info.State.Bytes, Added: change.Added, Anew: change.Anew,
				})
			}
			if len(change.Added)+len(change.Anew) > 0 {
				err := a.line("the queue was there: %d partitions are new in it, %d begin anew", len(change.Added), len(change.Anew))
				if err != nil {
					return err
				}
			}
			return a.line("stream %s has the triggers of %s on %s", info.Config.Name, args[0], subject)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.FromStart, "from-start", false, "take in the triggers that the output streams still hold, too")
	f.DurationVar(&o.MaxAge, "max-age", 0, "how long a trigger is kept (default 72h)")
	f.Int64Var(&o.MaxBytes, "max-bytes", 0, "`bytes` of the queue, the oldest triggers go first (default 1 GiB)")
	f.IntVar(&o.Replicas, "replicas", 0, "replicas of the stream (default as many as the output streams have)")
	return c
}

// topicQueue is a queue in JSON.
type topicQueue struct {
	Stream   string `json:"stream"`
	Subject  string `json:"subject,omitempty"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	Added    []int  `json:"added,omitempty"`
	Anew     []int  `json:"anew,omitempty"`
	Outdated bool   `json:"outdated,omitempty"`
}

func newTopicListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List topic queues",
		Example: `  carillon topic list
  carillon topic list --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			infos, err := client.TopicQueues(c.Context())
			if err != nil {
				return err
			}
			topics, err := client.OutdatedTopicQueues(c.Context())
			if err != nil {
				return err
			}
			outdated := make(map[string]bool)
			command := "carillon"
			if prefix := client.Names().Prefix; prefix != carillon.DefaultNames().Prefix {
				command += " --prefix " + prefix
			}
			for _, topic := range topics {
				outdated[client.Names().TopicStream(topic)] = true
				shown := excerpt([]byte(topic), carillon.MaxTopicLength)
				fmt.Fprintf(a.stderr, "carillon: the queue of %s lacks triggers; to take them in: %s topic create '%s'\n", shown, command, shown)
			}
			queues := []topicQueue{}
			for _, i := range infos {
				name := i.Config.Name
				queues = append(queues, topicQueue{Stream: name, Messages: i.State.Msgs, Bytes: i.State.Bytes, Outdated: outdated[name]})
			}
			if a.json {
				return a.marshal(struct {
					Queues []topicQueue `json:"queues"`
				}{queues})
			}
			w := a.table()
			fmt.Fprintln(w, "STREAM\tTRIGGERS\tBYTES")
			for _, q := range queues {
				fmt.Fprintf(w, "%s\t%d\t%d\n", q.Stream, q.Messages, q.Bytes)
			}
			return w.Flush()
		},
	}
}

func newTopicDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "delete TOPIC",
		Short:   "Delete a topic queue; the output streams keep their triggers",
		Example: `  carillon topic delete billing.renewals`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := optionError(carillon.CheckTopicFilter(args[0])); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			if err := client.DeleteTopicQueue(c.Context(), args[0]); err != nil {
				return err
			}
			name := client.Names().TopicStream(args[0])
			if a.json {
				return a.marshal(struct {
					Stream  string `json:"stream"`
					Deleted bool   `json:"deleted"`
				}{name, true})
			}
			return a.line("stream %s is deleted", name)
		},
	}
}
