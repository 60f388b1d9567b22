package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Outputs that are missing from the middle of an output stream are told of. A hole between two outputs that follow each other is none of
// those, and what is gone from the end is told of once it is in the middle.
func TestMissingOutputsAreTold(t *testing.T) {
	nc, s := openStreams(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	var last, output uint64
	publish := func(subject, header, data string) {
		t.Helper()
		stored := make(chan error, 1)
		m := streams.Chained{Subject: []byte(subject), Header: []byte(header), Data: data, Expect: last}
		if err := s.Out[0].PublishChained(&m, func(_ uint64, err error) { stored <- err }); err != nil {
			t.Fatal(err)
		}
		s.Flush()
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
		last++
	}
	outputs := func(job string, count int) {
		t.Helper()
		e := carillon.Event{Kind: carillon.EventCompleted, Job: job}
		for range count {
			output++
			publish("carillon.event.0.completed."+job, fmt.Sprintf("%s: %d\r\n", carillon.HeaderOutput, output), string(e.AppendJSON(nil)))
		}
	}
	purge := func(subject string) {
		t.Helper()
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	p := &partition{serving: true, chain: engine.NewChain()}
	n := &Node{o: Options{Prefix: "carillon", Stream: "CARILLON"}, log: slog.New(slog.NewTextHandler(&log, nil)), streams: s, partitions: []*partition{p}}
	look := func(what string, missing uint64, told string) {
		t.Helper()
		log.Reset()
		p.chain.Resume(last, output, nil)
		for range 4 { // two looks at the stream; there is no bucket of nodes
			if err := n.checkNextStream(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		lines := strings.Count(log.String(), "\n")
		if p.missing.outputs != missing || !strings.Contains(log.String(), told) || (told == "") != (lines == 0) || lines > 1 {
			t.Errorf("%s: %d are missing, want %d; told: %q, want %q", what, p.missing.outputs, missing, log.String(), told)
		}
	}
	look("a new stream", 0, "")
	outputs("a", 3)
	publish("carillon.trigger.0.foreign", "", "")
	outputs("a", 2)
	outputs("b", 2)
	outputs("a", 1)
	look("a whole stream", 0, "")
	purge("carillon.trigger.0.foreign")
	look("a foreign message is gone", 0, "")
	purge("carillon.event.0.completed.b")
	look("outputs 6 and 7 are gone", 2, "missing=2 first_output=6 last_output=7")
	outputs("c", 3)
	purge("carillon.event.0.completed.c")
	look("the end is gone, too", 2, "")
	outputs("a", 1)
	look("it is in the middle", 5, "missing=5 first_output=6 last_output=11")
	newest := output
	output = 5
	outputs("a", 2)
	output = newest
	p.missing = missingOutputs{} // the next run
	look("outputs 6 and 7 were published again", 3, "missing=3")
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(last)); err != nil {
		t.Fatal(err)
	}
	look("the stream has dropped all that", 0, "")
}
