package node_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// replicated starts three servers, and returns the options of a node that keeps three replicas there.
func replicated(t testing.TB) (*natstest.Cluster, node.Options) {
	t.Helper()
	servers := natstest.StartCluster(t, 3, "")
	o := base(t)
	o.NATS, o.Replicas = servers.URL(), 3
	return servers, o
}

// With three replicas of everything, firing goes on without the server that led the log, each trigger once and in order.
// Streams that are made later have three replicas, too.
func TestReplicated(t *testing.T) {
	t.Parallel()
	servers, o := replicated(t)
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	put(t, c, beat)
	beats(t, c, 20)
	i := servers.Leader(server.DEFAULT_GLOBAL_ACCOUNT, "CARILLON_LOG")
	servers.Stop(i)
	beats(t, c, 20)
	fires(t, c, "without-one")
	servers.Start(i)
	ready(t, r)
	js := jetStream(t, nc)
	eventually(t, "all three servers are there again", func() bool {
		_, err := c.CreateTopicQueue(t.Context(), "default", carillon.TopicQueueOptions{})
		return err == nil
	})
	if _, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Bucket: "saves"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CARILLON_LOG", "CARILLON_OUT_0", "CARILLON_OUT_1", "CARILLON_TOPIC_default", "OBJ_saves"} {
		st, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.CachedInfo().Config.Replicas; got != 3 {
			t.Errorf("%s has %d replicas", name, got)
		}
	}
	unbroken(t, nc, c)
	r.stop(t)

	// If they have more replicas than are asked for, the log says so, and if the nodes' bucket has fewer. A bucket that is made then gets
	// as many as they have.
	bucket, err := js.Stream(t.Context(), "KV_CARILLON_NODES")
	if err != nil {
		t.Fatal(err)
	}
	single := bucket.CachedInfo().Config
	single.Replicas = 1
	if _, err := js.UpdateStream(t.Context(), single); err != nil {
		t.Fatal(err)
	}
	o.Replicas = 1
	r = run(t, o)
	for _, want := range []string{
		`msg="the streams have more replicas than are asked for, and keep them" replicas=3 asked_for=1`,
		`"nats stream edit KV_CARILLON_NODES --replicas 3"`,
	} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	if err := js.DeleteStream(t.Context(), "KV_CARILLON_NODES"); err != nil {
		t.Fatal(err)
	}
	answered(t, "the nodes' bucket is made anew", func(ctx context.Context) error {
		bucket, err = js.Stream(ctx, "KV_CARILLON_NODES")
		return err
	})
	if got := bucket.CachedInfo().Config.Replicas; got != 3 {
		t.Errorf("the bucket is made anew with %d replicas", got)
	}
	r.stop(t)

	// If the streams have fewer replicas than are asked for, the error says so.
	o.Replicas = 5
	words(t, refused(t, o), "CARILLON_LOG cannot be used", "it has 3 replicas, 5 are asked for")
}

// A topic queue gets the triggers of all partitions, although outputs of several partitions have the same number. On an
// external NATS messages have ids, and a stream that sources others drops what it takes for duplicates because of them.
func TestTopicQueueOfAllPartitions(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.NATS = natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	queue, err := c.CreateTopicQueue(t.Context(), "default", carillon.TopicQueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const jobs = 100 // in each partition
	at := "@at " + time.Now().Add(time.Second).UTC().Format(carillon.TimeFormat)
	for p := range partitions {
		for i := range jobs {
			put(t, c, carillon.Job{ID: in(p, fmt.Sprintf("job%d-", i)), Schedule: at})
		}
	}
	eventually(t, "all have fired", func() bool { return len(allOutputs(t, nc, partitions)) == jobs*partitions })
	eventually(t, "all triggers are in the queue", func() bool {
		info, err := queue.Info(t.Context())
		return err == nil && info.State.Msgs == jobs*partitions
	})
	r.stop(t)
}

// Engines take the partitions from each other again and again, as when an owner that was taken for dead comes back. They
// publish the same outputs to replicated streams, and the streams survive that.
func TestReplicatedRivals(t *testing.T) {
	t.Parallel()
	_, o := replicated(t)
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	put(t, c, beat)
	for i := range 100 {
		put(t, c, carillon.Job{ID: fmt.Sprintf("other-%d", i), Schedule: "@every 10ms"})
	}
	rival := base(t)
	rival.NATS, rival.Name = o.NATS, "rival"
	second := run(t, rival)
	for range 4 {
		orphanClaims(t, nc, c, partitions)
		beats(t, c, 10)
	}
	r.stop(t)
	selected(t, c.DeleteWhere, carillon.Selection{Prefix: "other"})
	beats(t, c, 10)
	unbroken(t, nc, c)
	second.stop(t)
}

// An answer that contradicts the log may come from a server that does not lead the stream any more. A partition does not stop
// for it at once. It goes on if the stream's later answers agree with the log, and stops if they do not.
func TestDoubt(t *testing.T) {
	t.Parallel()
	servers, o := replicated(t)
	first, _, _ := strings.Cut(servers.URL(), ",")
	w := startProxy(t, strings.TrimPrefix(first, "nats://"))
	o.NATS = w.url()
	r := run(t, o)
	nc := dial(t, servers.URL())
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	fires(t, c, in(1, "before"))

	// A stream with one output, which is ahead of the log. At the engine's end of the proxy it can take the place of partition 1's stream.
	js := jetStream(t, nc)
	const ahead = 1000
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "CARILLON_OUT_X", Subjects: []string{"ahead"}, Replicas: 3, AllowDirect: true, FirstSeq: ahead,
	}); err != nil {
		t.Fatal(err)
	}
	unknown := carillon.Event{Kind: carillon.EventCompleted, Job: "unknown"}
	m := nats.NewMsg("ahead")
	m.Data = unknown.AppendJSON(nil)
	m.Header.Set(carillon.HeaderOutput, strconv.Itoa(ahead))
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	disagree := func(id string) {
		t.Helper()
		w.rename("CARILLON_OUT_1", "CARILLON_OUT_X")
		foreign := nats.NewMsg("carillon.trigger.1.forged")
		foreign.Header.Set(forged, "1")
		if _, err := js.PublishMsg(t.Context(), foreign); err != nil { // the next output meets this message, and the chain is lost
			t.Fatal(err)
		}
		put(t, c, carillon.Job{ID: in(1, id), Schedule: "@in 1ms"})
	}
	doubts := func() int { return strings.Count(r.log.String(), engine.ErrAhead.Error()) }

	disagree("in-doubt")
	eventually(t, "the stream contradicts the log more than once", func() bool { return doubts() > 1 })
	w.rename("", "")
	fires(t, c, in(1, "after"))

	disagree("never")
	eventually(t, "the partition stops", func() bool {
		return strings.Contains(status(t, c).Partitions[1].Stopped, engine.ErrAhead.Error())
	})
	r.stop(t)
}
