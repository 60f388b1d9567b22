package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// showTrigger writes a trigger as a line, for watch, work and demo.
func showTrigger(w io.Writer, t *carillon.Trigger) error {
	_, err := fmt.Fprintf(w, "%s  %10s  %-24s %-16s %s\n", t.Scheduled.Local().Format("15:04:05.000"), milliseconds(t.Lateness()),
		t.Job, t.Topic, excerpt(t.Payload, 60))
	return err
}

// triggerLine is a trigger as JSON, for watch and work.
type triggerLine struct {
	Type      string      `json:"type"`
	Job       string      `json:"job"`
	Trigger   string      `json:"trigger"`
	Topic     string      `json:"topic"`
	Scheduled string      `json:"scheduled"`
	Received  string      `json:"received"`
	Lateness  float64     `json:"lateness_ms"`
	Version   uint64      `json:"version"`
	Output    uint64      `json:"output"`
	Missed    uint64      `json:"missed,omitempty"`
	Partition int         `json:"partition"`
	Attempt   int         `json:"attempt,omitempty"`
	Headers   nats.Header `json:"headers,omitempty"`

	// At most one of these is set, as in a job. White space in JSON is left out.
	Payload json.RawMessage `json:"payload,omitempty"`
	Text    string          `json:"payload_text,omitempty"`
	Base64  []byte          `json:"payload_base64,omitempty"`
}

func newTriggerLine(t *carillon.Trigger) triggerLine {
	line := triggerLine{
		Type: "trigger", Job: t.Job, Trigger: t.ID, Topic: t.Topic, Scheduled: formatTime(t.Scheduled),
		Received: t.Received.UTC().Format("2006-01-02T15:04:05.000000Z"), Lateness: float64(t.Lateness()) / float64(time.Millisecond),
		Version: t.Version, Output: t.Output, Missed: t.Missed, Partition: t.Partition, Attempt: t.Attempt, Headers: t.Headers,
	}
	switch {
	case utf8.Valid(t.Payload) && json.Valid(t.Payload): // json.Valid alone accepts any bytes within a string
		line.Payload = t.Payload
	case utf8.Valid(t.Payload):
		line.Text = string(t.Payload)
	default:
		line.Base64 = t.Payload
	}
	return line
}
