package carillon

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// startNATS runs a nats-server with JetStream for one test and connects to it. Such tests mostly wait, so
// they run beside each other.
func startNATS(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	t.Parallel()
	nc := dial(t, natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func dial(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// output stands in for the engine: output streams, and triggers chained into them as it does.
type output struct {
	t    *testing.T
	js   jetstream.JetStream
	last []uint64 // sequence, by partition
}

func makeOutput(t *testing.T, js jetstream.JetStream, partitions int) *output {
	t.Helper()
	n := DefaultNames()
	for p := range partitions {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name:     n.OutStream(p),
			Subjects: []string{n.Trigger(p, ">"), fmt.Sprintf("carillon.event.%d.>", p)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return &output{t: t, js: js, last: make([]uint64, partitions)}
}

func (o *output) trigger(p int, topic, job string, ms int64, payload string) {
	o.t.Helper()
	m := nats.NewMsg(DefaultNames().Trigger(p, topic))
	m.Data = []byte(payload)
	m.Header.Set(HeaderJob, job)
	m.Header.Set(HeaderTrigger, FormatTriggerID(job, ms))
	m.Header.Set(HeaderScheduled, time.UnixMilli(ms).UTC().Format(TimeFormat))
	m.Header.Set(HeaderVersion, "3")
	m.Header.Set(HeaderOutput, strconv.FormatUint(o.last[p]+1, 10))
	m.Header.Set("Tenant", "acme")
	o.publish(p, m)
}

func (o *output) publish(p int, m *nats.Msg) {
	o.t.Helper()
	ack, err := o.js.PublishMsg(o.t.Context(), m, jetstream.WithExpectLastSequence(o.last[p]))
	if err != nil {
		o.t.Fatal(err)
	}
	o.last[p] = ack.Sequence
}

// eventually waits for a condition that the machine's load may delay but not prevent.
var eventually = natstest.Eventually
