package carillon

import (
	"strconv"
	"strings"
)

// Names gives the subjects and streams of one service.
type Names struct {
	Prefix string // of subjects, one token
	Stream string // what streams' names begin with
}

// DefaultNames are those of a service that was given no others.
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

// Command is where a command is published: carillon.cmd.<verb>.<job>.
func (n Names) Command(verb Verb, job string) string {
	return n.Prefix + ".cmd." + string(verb) + "." + job
}

// API is where a request is sent: carillon.api.<verb>.<job>, or carillon.api.<verb> without a job.
func (n Names) API(verb Verb, job string) string {
	if job == "" {
		return n.Prefix + ".api." + string(verb)
	}
	return n.Prefix + ".api." + string(verb) + "." + job
}

// Log is where a command stands in the log: carillon.log.<p>.<verb>.<job>.
func (n Names) Log(partition int, verb Verb, job string) string {
	return n.Record(partition, string(verb)) + "." + job
}

// Record is where an engine's record stands in the log: carillon.log.<p>.<kind>, with _ for a partition
// below zero, which means several.
func (n Names) Record(partition int, kind string) string {
	p := "_"
	if partition >= 0 {
		p = strconv.Itoa(partition)
	}
	return n.Prefix + ".log." + p + "." + kind
}

// Trigger is where a partition's trigger is published: carillon.trigger.<p>.<topic>. An empty topic is
// DefaultTopic.
func (n Names) Trigger(partition int, topic string) string {
	if topic == "" {
		topic = DefaultTopic
	}
	return n.Triggers(partition) + topic
}

// Triggers is what the subjects of a partition's triggers begin with: carillon.trigger.<p>. and a dot.
func (n Names) Triggers(partition int) string {
	return n.Prefix + ".trigger." + strconv.Itoa(partition) + "."
}

// AllTriggers means the triggers of a topic in all partitions: carillon.trigger.*.<topic>.
func (n Names) AllTriggers(topic string) string { return n.Prefix + ".trigger.*." + topic }

// AllEvents means all events: carillon.event.>.
func (n Names) AllEvents() string { return n.Prefix + ".event.>" }

// Event is where a partition's event is published: carillon.event.<p>.<kind>.<job>. What is no valid
// job id becomes _.
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

// TopicStream is the stream of a topic queue: CARILLON_TOPIC_<topic>, in which _ stands for dots, ANY
// and ALL for the wildcards, and - for what a stream's name cannot hold.
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

// TopicSubject is where the messages of a topic queue stand in it: carillon.topic.<topic>.
func (n Names) TopicSubject(topic string) string { return n.Prefix + ".topic." + topic }

// SplitTrigger takes a trigger's subject apart; ok is false for any other subject. The subjects of topic
// queues are triggers' too, of partition -1.
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
