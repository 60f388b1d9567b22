package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/cluster"
)

// Any node answers any request. A request about one job is forwarded to a node that follows the job's partition, and its answer is
// passed back. That node cannot answer the client itself: if the request came from another account, nats-server made its reply subject,
// and does not accept what that node publishes to it. For a request about many jobs, a node asks others about the partitions that
// it does not follow, and puts the answers together. All of this goes over subjects that only engines use, <prefix>.node.<name>.…, and is
// not forwarded again.

// nodeSubject is the root of the subjects on which a node answers the others.
func (n *Node) nodeSubject(name string) string { return n.o.Prefix + ".node." + name }

// answersHere tells whether this node answers about a partition. It does if it follows that, unless its disk stands still and another
// node follows the partition, too.
func (n *Node) answersHere(p *partition) bool {
	return p.follows.Load() && (!n.diskStalled() || n.followersView().Follower(p.number) == "")
}

// followersView is the view by which requests are forwarded. This node is not in it while its disk stands still.
func (n *Node) followersView() cluster.View {
	v := n.view()
	if n.diskStalled() {
		v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(b cluster.Beat) bool { return b.Name == n.o.Name })
	}
	return v
}

// forward has a request answered by a node that follows the partition.
func (n *Node) forward(c *call, p *partition) error {
	to := n.followersView().Follower(p.number)
	switch {
	case to == "":
		return unfollowed(p.number)
	case c.forwarded, to == n.o.Name:
		return n.notFollowedHere(p.number)
	}
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	// No other header: nats-server takes some as orders, for example to publish a trace to a given subject, with the sender's rights.
	var header nats.Header
	if request := c.Headers().Get(carillon.HeaderRequest); request != "" {
		header = nats.Header{carillon.HeaderRequest: []string{request}}
	}
	answer, err := n.requestConn.RequestMsgWithContext(ctx, &nats.Msg{
		Subject: n.nodeSubject(to) + strings.TrimPrefix(c.Subject(), n.o.Prefix), Header: header, Data: c.Data(),
	})
	if err != nil {
		return unanswered(to, err)
	}
	return c.publish(&nats.Msg{Header: answer.Header, Data: answer.Data})
}

// unfollowed is the refusal of a request about a partition that no live node follows.
func unfollowed(partition int) error {
	return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("no live node follows partition %d", partition)}
}

// notFollowedHere is the refusal of a request from a node that wrongly believes the partition to be here.
func (n *Node) notFollowedHere(partition int) error {
	return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("node %s does not follow partition %d just now", n.o.Name, partition)}
}

// unanswered is the error of a request that another node did not answer.
func unanswered(name string, err error) error {
	return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("node %s did not answer, so the outcome is unknown: %v", name, err)}
}

// Some requests take a node long. While it works on one, it sends an empty answer every keepAliveEvery.
const (
	keepAliveEvery   = time.Second
	keepAliveTimeout = 5 * time.Second // after so long without any answer the asking node gives up
)

// askNode asks another node, and waits for the answer as long as that node says that it is still at work. Errors: the other node's,
// unanswered.
func (n *Node) askNode(ctx context.Context, name, what string, header nats.Header, body []byte) (*nats.Msg, error) {
	inbox := n.requestConn.NewInbox()
	sub, err := n.requestConn.SubscribeSync(inbox)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
		err = n.requestConn.PublishMsg(&nats.Msg{Subject: n.nodeSubject(name) + "." + what, Reply: inbox, Header: header, Data: body})
	}
	for err == nil {
		var answer *nats.Msg
		wait, cancel := context.WithTimeout(ctx, keepAliveTimeout)
		answer, err = sub.NextMsgWithContext(wait)
		cancel()
		switch {
		case err != nil:
		case answer.Header.Get(micro.ErrorCodeHeader) != "":
			return nil, carillon.ParseError(answer.Data)
		case len(answer.Data) > 0:
			return answer, nil
		}
	}
	return nil, unanswered(name, err)
}

// handleNode is handle for requests from other nodes. It says every keepAliveEvery that it is still at work.
func (n *Node) handleNode(r micro.Request, do func(*call) error) {
	n.handle(r, func(c *call) error {
		over := make(chan struct{})
		var saying sync.WaitGroup
		saying.Go(func() {
			t := time.NewTicker(keepAliveEvery)
			defer t.Stop()
			for {
				select {
				case <-over:
					return
				case <-t.C:
					_ = c.answer(nil) // a node that does not hear it asks again
				}
			}
		})
		defer saying.Wait()
		defer close(over)
		return do(c)
	})
}

// followedHere finds a partition by its number in a request between nodes.
func (n *Node) followedHere(number string) (*partition, error) {
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(n.partitions) {
		return nil, &carillon.Error{Code: carillon.CodeInvalidField, Field: "partition", Message: fmt.Sprintf("%q is none of %d", number, len(n.partitions))}
	}
	if p := n.partitions[i]; p.follows.Load() {
		return p, nil
	}
	return nil, n.notFollowedHere(i)
}

// whoFollows returns the partitions about which this node answers, and the others by the name of the node that is to be asked about them.
// Error: no live node follows one of them.
func (n *Node) whoFollows() (here []*partition, there map[string][]*partition, err error) {
	v := n.followersView()
	there = make(map[string][]*partition)
	for _, p := range n.partitions {
		if n.answersHere(p) {
			here = append(here, p)
			continue
		}
		name := v.Follower(p.number)
		if name == "" {
			return nil, nil, unfollowed(p.number)
		}
		there[name] = append(there[name], p)
	}
	return here, there, nil
}

// The headers of requests between nodes, and of their answers.
const (
	headerPartitions = "Carillon-Partitions" // numbers, with commas between
	headerAfter      = "Carillon-After"      // the last job id that was looked at
	headerMore       = "Carillon-More"       // set if there are jobs behind that id
)

func numbers(ps []*partition) string {
	all := make([]string, len(ps))
	for i, p := range ps {
		all[i] = strconv.Itoa(p.number)
	}
	return strings.Join(all, ",")
}

// namedPartitions are the partitions that a request between nodes names.
func (n *Node) namedPartitions(c *call) (ps []*partition, err error) {
	for number := range strings.SplitSeq(c.Headers().Get(headerPartitions), ",") {
		p, err := n.followedHere(number)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// askEach asks several nodes at the same time, each about the partitions listed for it, and returns their errors joined. take is called
// with each answer, never twice at the same time.
func (n *Node) askEach(ctx context.Context, there map[string][]*partition, what string, body []byte, take func(answer []byte) error) (err error) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for name, ps := range there {
		work.Go(func() {
			answer, failed := n.askNode(ctx, name, what, nats.Header{headerPartitions: {numbers(ps)}}, body)
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = take(answer.Data)
			}
			err = errors.Join(err, failed)
		})
	}
	work.Wait()
	return err
}

// forwardable names the endpoints whose requests a node that does not follow the job's partition forwards to one that does.
var forwardable = map[string]bool{"put": true, "delete": true, "pause": true, "resume": true, "fire": true, "get": true}
