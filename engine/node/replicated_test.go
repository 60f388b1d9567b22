package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// replicated starts three servers, and gives the options of a node that keeps three replicas there.
func replicated(t testing.TB) (*natstest.Cluster, node.Options) {
	t.Helper()
	servers := natstest.StartCluster(t, 3, "")
	o := base(t)
	o.NATS, o.Replicas = servers.URL(), 3
	return servers, o
}

// Three replicas of everything: firing goes on without the server that led the log, each trigger once and in order; and
// what is made later has three replicas, too.
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

	// Where the streams have less than is asked for, that is said.
	o.Replicas = 5
	words(t, refused(t, o), "CARILLON_LOG cannot be used", "it has 3 replicas, 5 are asked for")
}

// Engines that take the partitions from each other again and again publish the same outputs to replicated streams, and
// none kills them: as when an owner that was taken for dead comes back.
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
		strayClaims(t, nc, c, partitions)
		beats(t, c, 10)
	}
	r.stop(t)
	if _, err := c.DeleteWhere(t.Context(), carillon.Selection{Prefix: "other"}); err != nil {
		t.Fatal(err)
	}
	beats(t, c, 10)
	unbroken(t, nc, c)
	second.stop(t)
}
