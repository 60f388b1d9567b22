package streams

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// A chain on three replicas, pipelined, each message with an ack of its own. There is no gap and no duplicate message
// although the stream's leader is lost in the middle.
func TestReplicatedChain(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3, "")
	nc := connectTo(t, c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
	s := open(t, nc, Config{Partitions: 1, Replicas: 3})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CARILLON_LOG", "CARILLON_OUT_0"} {
		st, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if i := st.CachedInfo(); i.Config.Replicas != 3 || len(i.Cluster.Replicas) != 2 {
			t.Errorf("%s has %d replicas, %+v", name, i.Config.Replicas, i.Cluster)
		}
	}
	out := s.Out[0]
	const n = 1000
	if at := chainAll(t, out, 0, 0, n); at != n {
		t.Fatalf("%d messages in an empty stream end at %d", n, at)
	}
	i := c.Leader(server.DEFAULT_GLOBAL_ACCOUNT, "CARILLON_OUT_0")
	down := make(chan struct{})
	go func() {
		defer close(down)
		c.Stop(i)
	}()
	chainAll(t, out, n, n, 2*n)
	<-down
	seen := 0
	if err := out.Scan(t.Context(), 0, 2*n, func(batch []Message) error {
		for _, m := range batch {
			if string(m.Data) != fmt.Sprint(seen) {
				return fmt.Errorf("message %q at %d, want %d", m.Data, m.Seq, seen)
			}
			seen++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if seen != 2*n {
		t.Errorf("%d messages, want %d", seen, 2*n)
	}

	// Somebody who changes the number of replicas edits one stream after the other. As many as are asked for are enough in each.
	st, err := js.Stream(t.Context(), "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	single := st.CachedInfo().Config
	single.Replicas = 1
	if _, err := js.UpdateStream(t.Context(), single); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), nc, Config{})
	if err != nil {
		t.Fatalf("one replica is asked for: %v", err)
	}
	defer again.Close()
	if info, err := again.Out[0].Info(t.Context()); err != nil || info.Mismatch != "" || info.Replicas != 1 {
		t.Errorf("%+v, %v", info, err)
	}
}

// chainAll sends numbers in windows, as a publisher does, and returns the last sequence. After a window with an error
// it goes on where the stream ends.
func chainAll(t testing.TB, out *OutStream, behind uint64, from, to int) uint64 {
	t.Helper()
	const window = 100
	for from < to {
		end := min(from+window, to)
		answers := make(chan error, window)
		for i := from; i < end; i++ {
			expect := behind + uint64(i-from)
			err := out.PublishChained(chained("carillon.trigger.0.topic", fmt.Append(nil, i), expect), func(seq uint64, err error) {
				if err == nil && seq != expect+1 {
					err = fmt.Errorf("stored at %d behind %d", seq, expect)
				}
				answers <- err
			})
			if err != nil {
				answers <- err
			}
		}
		var failed error
		for i := from; i < end; i++ { // waits for all acks: then nothing is in flight any more
			if err := <-answers; err != nil {
				failed = err
			}
		}
		if failed == nil {
			behind, from = behind+uint64(end-from), end
			continue
		}
		eventually(t, "the stream tells its end", func() bool {
			info, m, err := out.Last(t.Context())
			if err != nil || m == nil { // m is nil if nothing was stored
				return err == nil
			}
			behind = info.Last
			_, err = fmt.Sscan(string(m.Data), &from)
			from++
			return err == nil
		})
	}
	return behind
}

// Why chains on replicated streams have no links (engine/chain.go): from 2.14 on, nats-server stops all replicas of
// a stream because of one message that expects another message id before it. If this test fails, links may be possible there.
func TestReplicatedLink(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3, "")
	nc := connectTo(t, c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
	s := open(t, nc, Config{Partitions: 1, Replicas: 3, AckTimeout: 10 * time.Second})
	out := s.Out[0]
	last := chainAll(t, out, 0, 0, 1)
	refused := make(chan error)
	m := chained("carillon.trigger.0.topic", []byte("1"), last)
	m.Header = append(m.Header, "Nats-Expected-Last-Msg-Id: another\r\n"...)
	if err := out.PublishChained(m, func(_ uint64, err error) { refused <- err }); err != nil {
		t.Fatal(err)
	}
	var api *APIError
	if err := <-refused; !errors.As(err, &api) || api.ErrCode != 10070 {
		t.Errorf("the link was refused with %v", err)
	}
	if seq, err := publishChained(t, out, "carillon.trigger.0.topic", []byte("1"), last); err == nil {
		t.Errorf("the stream goes on, at %d", seq)
	}
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Errorf("the log went with it: %v", err)
	}
}

// The leader of a stream steps down in favour of the server that is named. When it is asked again, in favour of the one that leads
// already, nothing happens.
func TestStepDown(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3, "")
	nc := connectTo(t, c.URL())
	s := open(t, nc, Config{Partitions: 1, Replicas: 3})
	leaderOf := func() (leader string, followers []string) {
		eventually(t, "the stream has a leader", func() (ok bool) {
			var err error
			leader, followers, err = s.LeaderOf(t.Context(), s.Log.Name())
			return err == nil
		})
		return leader, followers
	}
	first, followers := leaderOf()
	if len(followers) != 2 {
		t.Fatalf("%s is followed by %v", first, followers)
	}
	before := mustInfo(t, s).Leader
	if now := mustInfo(t, s).Leader; before.Name != first || before.Since == "" || !now.Same(before) {
		t.Errorf("%v leads, and then %v", before, now)
	}
	refusals, err := nc.SubscribeSync("$JS.EVENT.ADVISORY.API")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{followers[0], followers[1], first} {
		if err := StepDown(nc, s.Log.Name(), to); err != nil {
			t.Fatal(err)
		}
		eventually(t, to+" leads", func() bool { leader, _ := leaderOf(); return leader == to })
		if err := StepDown(nc, s.Log.Name(), to); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the second time is refused", func() bool {
			m, err := refusals.NextMsg(5 * time.Second)
			return err == nil && strings.Contains(string(m.Data), "STEPDOWN") && strings.Contains(string(m.Data), "already leader")
		})
		if leader, _ := leaderOf(); leader != to {
			t.Errorf("%s leads, not %s", leader, to)
		}
	}
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Error(err)
	}
	if again := mustInfo(t, s).Leader; again.Name != first || again.Same(before) {
		t.Errorf("%v leads once more, as %v did", again, before)
	}
}

// mustInfo returns the Info of a log that has a leader.
func mustInfo(t testing.TB, s *Streams) Info {
	t.Helper()
	info, err := s.Log.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// The answer of a replica that is left alone does not count, because the others may have gone on without it. nats-server
// lets it answer, at first as the leader that it was, and later because there is no leader.
func TestAloneOfThree(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3, "")
	nc := connectTo(t, c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
	s := open(t, nc, Config{Partitions: 1, Replicas: 3})
	chainAll(t, s.Out[0], 0, 0, 10)
	if info, err := s.Out[0].Info(t.Context()); err != nil || info.Last != 10 {
		t.Fatalf("a stream of 10 messages ends at %d (%v)", info.Last, err)
	}
	leader := c.Leader(server.DEFAULT_GLOBAL_ACCOUNT, "CARILLON_OUT_0")
	for i := range 3 {
		if i != leader {
			c.Stop(i)
		}
	}
	eventually(t, "the leader says that it leads nobody", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Out[0].Info(ctx)
		return errors.Is(err, ErrDisconnected) && strings.Contains(err.Error(), "CARILLON_OUT_0 has no leader whom its replicas follow")
	})
}

// While JetStream's servers have no leader, the API gives no messages; but a stream that has a leader is read all the same.
func TestReadWithoutLeaderOfAll(t *testing.T) {
	t.Parallel()
	const messages, more = 2 * scanFew, 5 // too many to be asked for one by one
	c := natstest.StartCluster(t, 5, "")
	nc := connectTo(t, c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
	s := open(t, nc, Config{Partitions: 1, Replicas: 3})
	out := s.Out[0]
	chainAll(t, out, 0, 0, messages)
	before := scanned(t, out, messages)
	leader, followers, err := s.LeaderOf(t.Context(), out.Name())
	if err != nil {
		t.Fatal(err)
	}
	stay := []string{leader, followers[0]} // a majority of the stream's three servers, but not of all five
	for i := range 5 {
		if !slices.Contains(stay, fmt.Sprintf("n%d", i+1)) {
			c.Stop(i)
		}
	}
	eventually(t, "the stream has a leader, and the API gives no message", func() bool {
		before, err := out.Info(t.Context())
		if err != nil {
			return false
		}
		m, err := nc.Request(apiPrefix+"STREAM.MSG.GET."+out.Name(), []byte(`{"seq":1}`), time.Second)
		if err != nil || !strings.Contains(string(m.Data), strconv.Itoa(codeNotAvailable)) {
			return false
		}
		now, err := out.Info(t.Context())
		return err == nil && now.Leader.Same(before.Leader)
	})

	info, last, err := out.Last(t.Context())
	if err != nil || info.Last != messages || !reflect.DeepEqual(*last, before[messages-1]) {
		t.Errorf("the last of %d is %+v (%v), want %+v", info.Last, last, err, before[messages-1])
	}
	if again := scanned(t, out, messages); !reflect.DeepEqual(again, before) {
		t.Errorf("read %+v, and before %+v", again, before)
	}
	chainAll(t, out, messages, messages, messages+more)
	if now := scanned(t, out, messages+more); !reflect.DeepEqual(now[:messages], before) {
		t.Errorf("with %d more read %+v, and before %+v", more, now, before)
	}
	// A message that no replica has is not reported as missing, once the last server knows that JetStream's leader is gone.
	eventually(t, "nothing is said", func() bool {
		_, err := out.Get(t.Context(), messages+more+1)
		return errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrNotFound) && strings.Contains(err.Error(), "404 Message Not Found")
	})
}

// scanned scans all of a stream that has so many messages.
func scanned(t testing.TB, out *OutStream, messages uint64) (all []Message) {
	t.Helper()
	err := out.Scan(t.Context(), 0, messages, func(batch []Message) error { all = append(all, batch...); return nil })
	if err != nil || len(all) != int(messages) {
		t.Fatalf("%d messages, want %d: %v", len(all), messages, err)
	}
	return all
}
