package carillon

import (
	"strconv"
	"strings"
)

// Names gives the subjects and streams of one service.
type Names struct {
	Prefix string // what subjects begin with: one token
	Stream string // what the names of streams begin with
}

// DefaultNames returns the names of a service that runs without --prefix.
func DefaultNames() Names { return Names{Prefix: "carillon", Stream: "CARILLON"} }

// NamesFor derives the names from a subject prefix: the streams of "acme" begin with "ACME".
func NamesFor(prefix string) Names {
	return Names{Prefix: prefix, Stream: strings.ToUpper(prefix)}
}

// Validate checks the names. The error is an *Error of CodeInvalidField.
func (n Names) Validate() error {
	const most = 32
	for _, s := range []string{n.Prefix, n.Stream} {
		if s == "" || len(s) > most || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			return errField(CodeInvalidField, "prefix", "%s is no prefix: 1 to %d of A-Z a-z 0-9 _ -", quote(s), most)
		}
	}
	return nil
}

// Command is the subject to which a command is published: carillon.cmd.<verb>.<job>.
func (n Names) Command(verb Verb, job string) string {
	return n.Prefix + ".cmd." + string(verb) + "." + job
}

// API is the subject to which a request is sent: carillon.api.<verb>.<job>, or carillon.api.<verb> without a job.
func (n Names) API(verb Verb, job string) string {
	if job == "" {
		return n.Prefix + ".api." + string(verb)
	}
	return n.Prefix + ".api." + string(verb) + "." + job
}

// Log is the subject that a command has in the log: carillon.log.<p>.<verb>.<job>.
func (n Names) Log(partition int, verb Verb, job string) string {
	return n.Record(partition, string(verb)) + "." + job
}

// Record is the subject that an engine's record has in the log: carillon.log.<p>.<kind>. For a record of
// several partitions, which is what a partition below zero means, <p> is _.
func (n Names) Record(partition int, kind string) string {
	p := "_"
	if partition >= 0 {
		p = strconv.Itoa(partition)
	}
	return n.Prefix + ".log." + p + "." + kind
}

// Trigger is the subject to which a partition's trigger is published: carillon.trigger.<p>.<topic>. An empty
// topic is DefaultTopic.
func (n Names) Trigger(partition int, topic string) string {
	if topic == "" {
		topic = DefaultTopic
	}
	return n.Triggers(partition) + topic
}

// Triggers is what the subjects of a partition's triggers begin with, up to the dot before the topic:
// carillon.trigger.<p>.
func (n Names) Triggers(partition int) string {
	return n.Prefix + ".trigger." + strconv.Itoa(partition) + "."
}

// AllTriggers matches the triggers of a topic in all partitions: carillon.trigger.*.<topic>.
func (n Names) AllTriggers(topic string) string { return n.Prefix + ".trigger.*." + topic }

// AllEvents matches all events: carillon.event.>.
func (n Names) AllEvents() string { return n.Prefix + ".event.>" }

// Event is the subject to which a partition's event is published: carillon.event.<p>.<kind>.<job>. If job is
// not a valid id, <job> is _.
func (n Names) Event(partition int, kind, job string) string {
	if CheckJobID(job) != nil {
		job = "_"
	}
	return n.Prefix + ".event." + strconv.Itoa(partition) + "." + kind + "." + job
}

// LogStream is the stream of commands and records: CARILLON_LOG.
func (n Names) LogStream() string { return n.Stream + "_LOG" }

// OutStream is the stream of a partition's triggers and events: CARILLON_OUT_<p>.
func (n Names) OutStream(partition int) string { return n.Stream + "_OUT_" + strconv.Itoa(partition) }

// TopicStream is the stream of a topic queue: CARILLON_TOPIC_<topic>. In <topic> _ replaces dots, ANY and ALL
// replace the wildcards * and >, and - replaces slashes and backslashes, which a stream's name cannot have.
func (n Names) TopicStream(topic string) string {
	return n.Stream + "_TOPIC_" + strings.Map(func(c rune) rune {
		switch c {
		case '.':
			return '_'
		case '/', '\\':
			return '-'
		}
		return c
	}, strings.NewReplacer("*", "ANY", ">", "ALL").Replace(topic))
}

// TopicSubject is the subject of the messages in a topic queue: carillon.topic.<topic>.
func (n Names) TopicSubject(topic string) string { return n.Prefix + ".topic." + topic }

// SplitTrigger splits a trigger's subject; ok is false for any other subject. The subjects of topic queues
// are triggers' subjects, too, with partition -1.
func (n Names) SplitTrigger(subject string) (partition int, topic string, ok bool) {
	rest, ok := strings.CutPrefix(subject, n.Prefix)
	if !ok {
		return 0, "", false
	}
	if topic, ok = strings.CutPrefix(rest, ".topic."); ok {
		return -1, topic, topic != ""
	}
	if rest, ok = strings.CutPrefix(rest, ".trigger."); !ok {
		return 0, "", false
	}
	number, topic, _ := strings.Cut(rest, ".")
	partition, err := strconv.Atoi(number)
	return partition, topic, err == nil && partition >= 0 && topic != ""
}
