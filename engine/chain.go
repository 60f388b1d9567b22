package engine

// # The chain
//
// The simple version. To publish outputs exactly once, publish one, wait for its ack, note it down, and
// publish the next: a round trip and a write for each. The chain needs neither. Every message carries
// the sequence that the stream must have before it (Nats-Expected-Last-Sequence). So the stream itself
// takes each output once, in order, without gaps, and after a crash the stream's end says how far it is.
//
// Invariants:
//
//   - Output number n is always the same message, because the machine is deterministic. So it does not
//     matter which owner's copy of n the stream took.
//   - Between two losses of the chain, output numbers and stream sequences grow together: an ack for
//     sequence s confirms the one output that belongs to s, and all before it.
//   - If message k is refused, k+1 … are refused too, since each expects the one before it. So only some
//     messages of a window ask for an ack, and the newest ack confirms the rest.
//
// What is hard. Sequences alone do not give the third invariant. When a foreign message (one that is not an
// output of this partition) takes the place of k, then k is refused; but k+1 finds the sequence that it
// expects and is stored, and its ack seems to confirm k, which is lost. Against that a chain does one of
// three things:
//
//   - It links its messages: each but the first after a resumption also expects the message id of the
//     one before it (Nats-Expected-Last-Msg-Id). Each chain makes its own ids. If two chains' copies of an
//     output had the same id, the stream's de-duplication would answer the second copy with the sequence
//     of the first.
//   - It is watched (Watch), and links nothing. Ids are a quarter of what a message costs the server. A chain
//     does without them while its host would hear of every foreign message: the host subscribes to the
//     partition's subjects on the chain's own connection, without an echo of what it sends itself, to a
//     server that stands alone. When the host hears of a foreign message, or finds one in the stream, it
//     loses the chain, and links from then on: behind that message each output has another sequence, and
//     what is still in flight must not be stored beside what is sent again. When the chain is resumed, the
//     host surveys all that the stream holds above what the log knows to be stored (Survey), and publishes
//     what is missing. It may hear of a foreign message a moment after the ack of the message behind it.
//     So an output counts as stored for good, and may be forgotten, only some time after its ack (the
//     host's syncOutputs).
//   - It has each message confirmed by an ack of its own (Confirm), and links nothing: for replicated streams.
//     A message that was displaced is refused, and the chain takes no ack beyond it. The first message
//     after a resumption goes alone, so that either it or what is in flight from before is refused. The
//     acks cost a third of the throughput. Linking is not possible there: nats-server checks the sequence
//     before it proposes a message, but the id only when each replica applies it, and from 2.14 on it
//     takes a mismatch there for a replica that went wrong. Then the stream stops on all replicas, for
//     good (TestReplicatedLink in engine/streams). For that two owners one after the other are enough,
//     without any foreign message.
//
// Any refusal, missing ack or lost connection loses the chain: what is in flight may or may not be
// stored. The host then asks the stream for its end and resumes from there. Messages of the lost window
// that still arrive afterwards are either stored, which is as good as ours, or refused.
//
// Tried and rejected: message ids and the de-duplication window (150 bytes an id, and it forgets);
// atomic batches (11–20 ms each); a commit record for each output in the local log (a write a trigger).

// The window bounds how many outputs are in flight. The chains of a host that publish at the same time share it, because they share
// the host's cores and its disk. So an output of high priority that becomes due waits behind the same number of others whether one
// chain publishes or many; and a chain that drains alone goes as fast as its stream stores.
//
// While outputs overtake others that were due before them, only part of the window is open: those that overtake are mostly of high
// priority, and should not wait long. That part is what the embedded server recently stored within overtakingTime, so that the wait is no
// longer on a slow machine, or while a sync of the streams takes half of the cores. Not always, because a drain of one priority would
// lose a twentieth of its rate. Not where messages are confirmed, because the time of a round trip to several servers is the network's.
//
// Tried and rejected: a window for each chain, of what it drains in 20 ms. A chain with nothing in flight may be waiting for work or
// for its window, and on two shared cores a chain mostly has nothing in flight. When these pauses were left out of the measurement,
// the windows of eight chains grew to 1,600 each, and the wait to 150 ms; when they were left in, nothing was ever measured.
const (
	windowAll           = 5120
	windowMin           = 128  // of a chain: with 64 a round trip starved it
	windowConfirmed     = 512  // at most: what is in flight must be looked for, and sent again, when a leader is lost
	acksInFlight        = 8    // acks asked for in one window
	minFreeShare        = 4    // a fourth of the window must be free before more outputs are made
	overtakingFor       = 8192 // outputs for which only part of the window is open, after one that overtook others
	minOvertakingWindow = MaxOvertakingWindow / 2
	overtakingTime      = 0.012 // s
)

// MaxOvertakingWindow is how much of the window is open at most while outputs overtake others.
const MaxOvertakingWindow = windowAll * 3 / 4

// Chain is the publisher of one partition's outputs, without the I/O: what to send when, and what is
// known to be stored.
type Chain struct {
	lost    bool
	watched bool
	confirm bool     // each message has its ack, and none is linked
	alone   bool     // confirm: the first message since the chain was resumed has no ack yet
	sending bool     // a message was sent since the chain was resumed
	queue   []Output // numbers above stored.Output, contiguous; queue[:sent] are in flight
	buffer  []Output // the memory that queue moves through
	sent    int
	expect  uint64 // the stream's last sequence once everything in flight is stored
	asked   int    // outputs sent since an ack was last asked for
	stored  Acked  // the newest output known to be in the stream

	window           int   // this chain's share
	overtakingWindow int   // its share while outputs overtake others
	due              int64 // of the trigger that was offered last
	overtakingLeft   int   // how many outputs are still to be stored before the whole window is open again (overtakingFor)
}

// NewChain returns a chain that must be resumed first. It links its messages, and has the least share of the window until Share.
func NewChain() *Chain { return &Chain{lost: true, window: windowMin, overtakingWindow: windowMin} }

// OvertakingWindow is how much of the window is open while outputs overtake others. perSecond is how many outputs the embedded server
// recently stored in a second.
func OvertakingWindow(perSecond float64) int {
	return int(min(max(perSecond*overtakingTime, minOvertakingWindow), MaxOvertakingWindow))
}

// Share tells the chain how many of its host's chains have outputs to publish now, itself included, and how much of the whole window
// is open while outputs overtake others (OvertakingWindow).
func (c *Chain) Share(chains, overtaking int) {
	chains = max(chains, 1)
	c.window, c.overtakingWindow = max(windowAll/chains, windowMin), max(overtaking/chains, windowMin)
}

// Watch says whether the host would hear of every foreign message. Only then does the chain go without links.
func (c *Chain) Watch(watched bool) { c.watched = watched }

// Watched tells what Watch was told.
func (c *Chain) Watched() bool { return c.watched }

// Confirm has every message confirmed by an ack of its own instead of linked to the one before: for a stream that is, or may
// become, replicated. The host must then give Acked only the acks of messages sent since the chain was resumed.
func (c *Chain) Confirm() { c.confirm = true }

// Confirms tells whether Confirm was called.
func (c *Chain) Confirms() bool { return c.confirm }

// Publish is one message to send.
type Publish struct {
	Output *Output // valid until the next call on the chain
	Expect uint64  // Nats-Expected-Last-Sequence
	Named  bool    // send it with a message id, which the next one is linked to
	Linked bool    // the stream's last message must be the one that this chain sent before
	Ack    bool    // ask for an ack
}

// Lost reports whether the chain must be resumed before it sends again.
func (c *Chain) Lost() bool { return c.lost }

// Lose gives up what is in flight: a message was refused, or an ack did not come.
func (c *Chain) Lose() {
	c.lost = true
	c.queue, c.buffer, c.sent, c.asked = nil, nil, 0, 0
}

// Resume goes on after the stream's end: lastSeq is the stream's last sequence, number the last output
// in it, and outputs are the ones after number, contiguous.
func (c *Chain) Resume(lastSeq, number uint64, outputs []Output) {
	*c = Chain{
		watched: c.watched, confirm: c.confirm, alone: c.confirm,
		queue: append([]Output(nil), outputs...), expect: lastSeq, stored: Acked{number, lastSeq},
		window: c.window, overtakingWindow: c.overtakingWindow,
	}
}

// Offer adds new outputs. A lost chain does not take them: Resume brings them.
func (c *Chain) Offer(outputs []Output) {
	if c.lost {
		return
	}
	// Where append would allocate, there is mostly room in front of the queue, where outputs that are stored were.
	if n := len(c.queue); n+len(outputs) > cap(c.queue) {
		if 2*(n+len(outputs)) > cap(c.buffer) {
			c.buffer = make([]Output, 4*(n+len(outputs)))
		}
		copy(c.buffer, c.queue)
		clear(c.buffer[n:])
		c.queue = c.buffer[:n]
	}
	c.queue = append(c.queue, outputs...)
	for i := range outputs {
		if due := outputs[i].Due; due != 0 { // an event is not due
			if due < c.due {
				c.overtakingLeft = overtakingFor
			}
			c.due = due
		}
	}
}

// open is how many outputs may be in the queue.
func (c *Chain) open() int {
	switch {
	case c.confirm:
		return min(c.window, windowConfirmed)
	case c.overtakingLeft > 0:
		return c.overtakingWindow
	}
	return c.window
}

// Next gives the next message to send at now, the stream's clock in unix ms. There is none while the
// chain is lost, the window is full, or the next output is held for its due time.
func (c *Chain) Next(now int64) (Publish, bool) {
	if c.full() || c.queue[c.sent].Due > now {
		return Publish{}, false
	}
	o := &c.queue[c.sent]
	links := !c.watched && !c.confirm
	p := Publish{Output: o, Expect: c.expect, Named: links, Linked: links && c.sending}
	c.sending = true
	c.sent++
	c.asked++
	c.expect++
	if c.confirm || c.asked >= c.open()/acksInFlight || c.sent == c.open() || c.sent == len(c.queue) || c.queue[c.sent].Due > now {
		p.Ack = true
		c.asked = 0
	}
	return p, true
}

// full tells whether nothing may be sent, whatever the time.
func (c *Chain) full() bool {
	return c.lost || c.sent == len(c.queue) || c.sent >= c.open() || c.alone && c.sent > 0
}

// HoldUntil is when the next output may be sent; ok is false when none waits for a time.
func (c *Chain) HoldUntil() (at int64, ok bool) {
	if c.full() {
		return 0, false
	}
	return c.queue[c.sent].Due, true
}

// Acked takes an ack, which says that the message at seq is stored. It returns the outputs that are known to be stored by that,
// only with Number, Due and Kind. Duplicate and late acks are harmless. Where each message is confirmed by an ack of its own, an
// ack that leaves one out loses the chain.
func (c *Chain) Acked(seq uint64) []Output {
	if c.lost || seq <= c.stored.Seq || seq > c.expect {
		return nil
	}
	if c.confirm && seq != c.stored.Seq+1 {
		c.Lose()
		return nil
	}
	c.alone = false
	n := int(seq - c.stored.Seq)
	c.stored = Acked{c.stored.Output + uint64(n), seq}
	stored := c.queue[:n]
	for i := range stored { // without their texts, which would stay in memory until other outputs take their place
		stored[i] = Output{Number: stored[i].Number, Due: stored[i].Due, Kind: stored[i].Kind}
	}
	c.queue = c.queue[n:]
	c.sent -= n
	c.overtakingLeft = max(c.overtakingLeft-n, 0)
	return stored
}

// Stored is the newest output known to be in the stream.
func (c *Chain) Stored() Acked { return c.stored }

// InFlight counts the outputs that were sent and not yet acknowledged.
func (c *Chain) InFlight() int { return c.sent }

// FreeWindow is how many more outputs the machine should make now: the limit of the next tick.
func (c *Chain) FreeWindow() int {
	if c.lost {
		return 0
	}
	room := c.open() - len(c.queue)
	if room < c.open()/minFreeShare {
		return 0 // a tick costs the same whatever it makes
	}
	return room
}
