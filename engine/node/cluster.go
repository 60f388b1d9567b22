package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Several nodes over one NATS
//
// Every node reads the whole log, stores it, and applies what is of the partitions that it follows: all, if nothing else was
// said (follow.go). It has their state and could serve them. Which one does is said by the latest claim in the log: the
// machine ignores ticks of any epoch but that claim's, on every node alike, and an output stream takes output n once, whoever
// publishes it. So none of what follows has to be right for the triggers to be; it has to be quick.
//
//   - A node that is named by View.Claimant and does not serve appends a claim (takeSeats). It ticks from the moment
//     when that comes back in the log, and not before: then all that the former owner did under its epoch has been
//     applied here. Its chain asks the output stream how far it is (resume).
//   - A node that reads another's claim in the log stops ticking and publishing there and then (claimApplied). Nobody
//     tells it otherwise, and nobody waits for it.
//   - A node that hangs or is cut off goes on believing that it serves. Its ticks carry an epoch that is over; its
//     outputs are the very ones that the new owner publishes, and the chain refuses the second copy. When it wakes up
//     it reads the claim.
//
// A planned hand-over is the same with the order turned round: the owner-to-be is caught up before it claims, so that
// the claim comes back at once; what is lost is the time of one record and one look at the output stream. Where nobody
// serves there is nothing to wait for, and the claim goes out first.
//
// Two nodes whose views differ could claim from each other for as long as they do. claimAgain bounds how often. What
// that costs is lateness alone.
const (
	// seatLook is how often a node looks whether it should serve something else. Positions in beats change without
	// a word, five times a second.
	seatLook = 50 * time.Millisecond
	// caughtUp is how many records of the log a member may be behind the one that is furthest, and count as caught
	// up. Positions are as of each one's last beat, so it is what a busy log takes up in one interval.
	caughtUp = 20_000
	// handOverLag is how many records an owner-to-be may be behind the log's end and wait for them to claim from one that
	// serves: they are applied in a millisecond or two.
	handOverLag = 200
	// handOverAsk bounds the question for the log's end. A slow answer is a reason to leave things as they are.
	handOverAsk = time.Second
	// handOverTimeout bounds how long a stopping node waits for others to take over.
	handOverTimeout = 10 * time.Second
	// neglectedFor is how long something may wait to be fired before nobody can be serving it: an election, and what follows.
	neglectedFor = 3 * time.Second
	// claimAgain is the least time between two claims of a partition by one node, unless the first was not stored.
	claimAgain = time.Second
	// leaveTimeout bounds the last word to the others, and the last answers.
	leaveTimeout = time.Second
	// meetTimeout bounds how long a node that comes waits for word of the others.
	meetTimeout = 3 * time.Second
	// onItsWay is how much later than this node another may hear who serves a partition, its requests included.
	onItsWay = 100 * time.Millisecond
	// reconnectSoon is how long a hand-over waits for a connection that broke.
	reconnectSoon = time.Second
)

// joined is this node among those over the same NATS.
type joined struct {
	tried    chan struct{} // closed when joining has ended, well or not; nil: the node does not join
	member   *cluster.Member
	err      error // why it could not join
	leaving  sync.Once
	takes    atomic.Bool   // it claims, and is among those who are asked
	since    time.Duration // when it began to, since the clock began; set before that
	draining atomic.Bool
	follows  atomic.Bool   // partitions are there to tell of
	nearing  atomic.Bool   // it is asked whether nearly all of the log is applied
	changed  chan struct{} // rung when who serves may have changed, or who could

	mu    sync.Mutex
	alone []time.Time // by partition: since when nobody says that it serves it; zero: somebody does
}

// look notes which partitions nobody serves.
func (j *joined) look(v cluster.View, partitions int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.alone == nil {
		j.alone = make([]time.Time, partitions)
	}
	for p, since := range j.alone {
		switch served := v.Serving(p) != ""; {
		case served:
			j.alone[p] = time.Time{}
		case since.IsZero():
			j.alone[p] = time.Now()
		}
	}
}

// servedElsewhere tells whether some node says that it serves a partition.
func (j *joined) servedElsewhere(partition int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.alone != nil && j.alone[partition].IsZero()
}

// unserved says which partitions nobody has served for a while.
func (j *joined) unserved() (problems []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, since := range j.alone {
		if !since.IsZero() && time.Since(since) > lostTooLong {
			problems = append(problems, fmt.Sprintf("no node has served partition %d for %s", p, time.Since(since).Round(time.Second)))
		}
	}
	return problems
}

// meetOthers waits, for meetTimeout at most, until this node knows who is there: until then it would say of each partition that it
// does not follow that nobody does.
func (n *Node) meetOthers(ctx context.Context) {
	if n.joined.member == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	select {
	case <-n.joined.member.Known():
	case <-ctx.Done():
	}
}

// nodesBucket is where the nodes of a service meet.
func nodesBucket(stream string) string { return stream + "_NODES" }

// nodeName makes a host's name one that a node may have.
func nodeName(host string) string {
	plain := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}
	if host = strings.Map(plain, host); len(host) > 64 {
		host = host[:64]
	}
	return host
}

// rights are those that a node over an external NATS needs beside its streams'.
func (n *Node) rights() streams.Rights {
	r := streams.Rights{Subscribe: []string{n.o.Prefix + ".api.>", n.o.Prefix + ".tenant.>", "$SRV.>"}, Answer: true}
	if n.o.NATS == "" {
		return r
	}
	bucket := "KV_" + nodesBucket(n.o.Stream)
	r.Publish = []string{
		"$KV." + nodesBucket(n.o.Stream) + ".>", "$JS.API.STREAM.INFO." + bucket, "$JS.API.STREAM.CREATE." + bucket,
		"$JS.API.DIRECT.GET." + bucket + ".>", "$JS.API.CONSUMER.CREATE." + bucket + ".>", "$JS.API.CONSUMER.DELETE." + bucket + ".*",
		"$JS.API.STREAM.LEADER.STEPDOWN." + bucket,
		n.nodeSubject("*") + ".>", n.cancels(),
	}
	r.Subscribe = append(r.Subscribe, n.nodeSubject(n.o.Name)+".>")
	return r
}

// membership are this node's options as a member.
func (n *Node) membership() cluster.Options {
	var membership trouble // there may be some with every beat
	return cluster.Options{
		Bucket: nodesBucket(n.o.Stream), Replicas: n.o.Replicas, Name: n.o.Name, Weight: n.o.Weight, Zone: n.o.Zone,
		Version: Version(), Partitions: n.layout.Partitions, Standbys: n.o.Standbys, Report: n.report,
		OnTrouble: func(err error) {
			membership.tell(n.log, time.Now(), "trouble with this node's membership; trying again", "error", err)
		},
	}
}

// join begins to make this node a member, with nothing to tell yet: a name that was in use a moment ago takes a while
// to be free.
func (n *Node) join(ctx context.Context) {
	j := &n.joined
	j.tried, j.changed = make(chan struct{}), make(chan struct{}, 1)
	n.work.Go(func() {
		defer close(j.tried)
		js, err := jetstream.New(n.nc)
		if err == nil {
			j.member, err = cluster.Join(ctx, js, n.membership())
		}
		if err != nil {
			j.err = fmt.Errorf("node: %w", err)
		}
	})
}

// takePart waits until all is applied that the log has, and begins to claim.
func (n *Node) takePart(ctx context.Context) error {
	n.joined.follows.Store(true)
	if err := n.catchUp(ctx); err != nil {
		return err
	}
	<-n.joined.tried
	if n.joined.err != nil {
		return n.joined.err
	}
	n.pulse.last = time.Now()
	n.work.Go(func() { n.feelPulse(ctx) })
	if err := n.hearCancels(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	n.joined.since = n.clock.running()
	n.joined.takes.Store(true)
	n.work.Go(func() { n.servers.Ask(ctx, n.nc) })
	n.work.Go(func() { n.every(ctx, seatLook, n.lookAtServers) })
	n.work.Go(func() { n.every(ctx, leadersLook, n.lookAtLeaders) })
	n.work.Go(func() { n.takeSeats(ctx) })
	n.work.Go(func() {
		if err := n.followSeats(ctx); err != nil {
			n.fail(err)
		}
	})
	return nil
}

// leave ends the membership, so that others know at once. The context of join has ended, or will not.
func (n *Node) leave() {
	j := &n.joined
	if j.tried == nil {
		return
	}
	<-j.tried
	if j.member == nil {
		return
	}
	j.leaving.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		if err := j.member.Leave(ctx); err != nil {
			n.log.Warn("the other nodes were not told that this one stops; they will notice", "error", err)
		}
	})
}

// stuck tells whether ticks do not come back although the log stream has answered all the while: then it is this node.
func (n *Node) stuck() bool {
	now := n.clock.running()
	return n.ticking.fruitless(time.Now()) > tickTimeout &&
		now-time.Duration(n.logHeard.Load()) < tickTimeout && now-time.Duration(n.logHeardSince.Load()) > tickTimeout
}

// report is what goes into each beat. A node that can neither fire nor read tells of no partition: others that can
// are to take them.
func (n *Node) report() cluster.Report {
	r := cluster.Report{Draining: n.joined.draining.Load(), ClockOffsetMS: n.clock.wrong().Milliseconds(), Server: n.nc.ConnectedServerName()}
	if !n.joined.follows.Load() {
		return r
	}
	r.Needs = n.needs()
	if n.holdTicks.Load() || n.stuck() {
		return r
	}
	position := n.applied.Load()
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.stopped == nil && p.follows.Load() {
			r.Partitions = append(r.Partitions, cluster.Progress{Partition: p.number, Position: position, Epoch: p.owned()})
		}
		p.mu.Unlock()
	}
	return r
}

// takeSeats claims what this node is to serve, until ctx ends.
func (n *Node) takeSeats(ctx context.Context) {
	t := time.NewTicker(seatLook)
	defer t.Stop()
	views := n.joined.member.Views()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-views:
			if !ok {
				if ctx.Err() != nil {
					return
				}
				n.fail(errors.Join(errors.New("node: no longer among the nodes of this service"), n.joined.member.Err()))
				return
			}
			ring(n.joined.changed)
		case <-t.C:
		}
		n.joined.look(n.joined.member.View(), len(n.partitions))
		n.takeDue(ctx)
	}
}

// takeDue claims what is due to this node: at once, or else once all of the log is applied. That is asked for beside it, as
// somebody may die meanwhile; and what seemed right before may not be so any more.
func (n *Node) takeDue(ctx context.Context) {
	atOnce, upToDate := n.due(n.seats())
	for _, p := range atOnce {
		n.claim(p)
	}
	if len(upToDate) == 0 || !n.joined.nearing.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.joined.nearing.Store(false)
		if !n.reachEnd(ctx) {
			return
		}
		_, upToDate := n.due(n.seats())
		for _, p := range upToDate {
			n.claim(p)
		}
	})
}

// seats is the view that claims go by: without those whose network is slow.
func (n *Node) seats() (cluster.View, servers.Slowness) {
	slow := n.servers.Slow()
	return withoutSlow(n.joined.member.View(), slow, n.o.Name), slow
}

// due are the partitions that this node is to claim: those that nobody serves at once, and those that somebody hands over once
// it has caught up. For a while after its own network was slow the former alone. While that is slow who seems dead may not be:
// then those that nobody can be serving, by all that the log has.
func (n *Node) due(v cluster.View, slow servers.Slowness) (atOnce, upToDate []*partition) {
	for _, p := range n.partitions {
		if v.Claimant(p.number, caughtUp) != n.o.Name || !n.mayClaim(p) {
			continue
		}
		switch serving := v.Serving(p.number); {
		case slow.Now:
			if serving == "" && n.neglected(p) {
				upToDate = append(upToDate, p)
			}
		case serving != "" && slow.Self:
		case serving != "" && serving != n.o.Name:
			upToDate = append(upToDate, p)
		default:
			atOnce = append(atOnce, p)
		}
	}
	return atOnce, upToDate
}

// neglected tells whether something has been due in a partition for so long that nobody can be serving it, by what this node has
// of the log.
func (n *Node) neglected(p *partition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.machine.NextDeadline()
	return ok && n.clock.ms()-at > neglectedFor.Milliseconds()
}

// mayClaim tells whether a claim of a partition makes sense.
func (n *Node) mayClaim(p *partition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.follows.Load() && p.owner.Epoch == 0 && p.stopped == nil && !p.claiming && time.Since(p.claimed) >= claimAgain
}

// reachEnd tells whether all is applied that the log has, or nearly so, in a moment.
func (n *Node) reachEnd(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, handOverAsk)
	defer cancel()
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	return err == nil && end-min(end, n.applied.Load()) <= handOverLag && n.reach(ctx, end) == nil
}

// serves counts the partitions that this node has claimed and nobody else since.
func (n *Node) serves() (count int) {
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.owner.Epoch != 0 {
			count++
		}
		p.mu.Unlock()
	}
	return count
}

// handOver lets others take what this node serves, and goes on ticking until they have. It returns when they have,
// when there is nobody to, when the run ends, or after a while.
func (n *Node) handOver(ctx context.Context) {
	if !n.joined.takes.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	broken := n.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer n.nc.RemoveStatusListener(broken)
	n.joined.draining.Store(true)
	began := time.Now()
	for n.serves() > 0 && n.heirs() && n.connectsSoon(ctx) && ctx.Err() == nil {
		select {
		case <-n.joined.changed:
		case <-broken:
		case <-ctx.Done():
		}
	}
	n.log.Info("handed over", "left", n.serves(), "took", time.Since(began))
}

// unasked waits until other nodes know somebody else to ask about each partition that was handed over, and for what they sent this
// one until then. A request to a node that no longer listens is dropped, by another server without a word: whoever sent it would
// wait for his whole timeout.
func (n *Node) unasked(ctx context.Context) {
	if !n.joined.takes.Load() || n.serves() > 0 || !n.heirs() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	asked := func() bool {
		v := n.view()
		return slices.ContainsFunc(n.partitions, func(p *partition) bool { return v.Follower(p.number) == n.o.Name })
	}
	for asked() && pause(ctx, 5*time.Millisecond) {
		continue
	}
	pause(ctx, onItsWay)
}

// connectsSoon waits for a connection that has just broken: with its server a host may stop this node, and the next server is
// milliseconds away.
func (n *Node) connectsSoon(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reconnectSoon)
	defer cancel()
	for !n.nc.IsConnected() && !n.nc.IsClosed() {
		if !pause(ctx, 5*time.Millisecond) {
			break
		}
	}
	return n.nc.IsConnected()
}

// heirs tells whether somebody else could serve.
func (n *Node) heirs() bool {
	for _, b := range n.view().Members {
		if b.Name != n.o.Name && !b.Draining && b.Weight > 0 {
			return true
		}
	}
	return false
}

// view is the cluster as this node sees it: empty for one that is alone with its server, and until it knows who else
// is there.
func (n *Node) view() cluster.View {
	if m := n.member(); m != nil {
		return m.View()
	}
	return cluster.View{}
}

// member is nil where this node has not joined.
func (n *Node) member() *cluster.Member {
	j := &n.joined
	if j.tried == nil {
		return nil
	}
	select {
	case <-j.tried:
		return j.member
	default:
		return nil
	}
}

// muted says that no beat of this node is stored while NATS is there. Who hears none of its own takes no other for dead.
func (n *Node) muted() []string {
	m := n.member()
	if m == nil || !n.nc.IsConnected() {
		return nil
	}
	since, err := m.Muted()
	if err == nil || since < lostTooLong {
		return nil
	}
	return []string{fmt.Sprintf("no beat of this node has been stored for %s, so others are not known to be gone and not taken over from: %s",
		since.Round(time.Second), err)}
}

// knowsOthers tells whether this node knows who else needs the log.
func (n *Node) knowsOthers() bool { return n.server != nil || len(n.view().Members) > 0 }

// neededElsewhere is the position above which other nodes still need the log. A node that died is waited for ten
// minutes and until the stream is half full, one that lives but lags until requests have to wait for room: the log is
// never held for ever. Who comes too late begins with nothing (beginAnew). But one who follows each partition is
// always waited for. While it is not known who is there, all of the log is needed.
func (n *Node) neededElsewhere() uint64 {
	if !n.knowsOthers() {
		return 0
	}
	v := n.view()
	needed := n.neededToFollow(v)
	if !n.filling.mustFree() {
		for i := range v.Silent {
			needed = min(needed, v.Silent[i].Needs)
		}
	}
	if !n.filling.tight() {
		for i := range v.Members {
			if v.Members[i].Name != n.o.Name { // this node's own word is older than what it knows
				needed = min(needed, v.Members[i].Needs)
			}
		}
	}
	return needed
}
