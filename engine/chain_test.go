package engine

import "testing"

// numbered makes the outputs from..to, all due at the same time.
func numbered(from, to uint64, due int64) []Output {
	var outputs []Output
	for n := from; n <= to; n++ {
		outputs = append(outputs, Output{Number: n, Due: due})
	}
	return outputs
}

// TestChain follows one chain: what it sends, for which messages it asks for an ack, and which outputs an ack confirms. The simulator
// tests lost acks, refusals and other writers.
func TestChain(t *testing.T) {
	c := NewChain()
	c.Offer(numbered(1, 1, 0))
	if _, ok := c.Next(1000); ok || !c.Lost() || c.FreeWindow() != 0 {
		t.Fatal("a new chain does not know where to go on")
	}
	// The stream ends at 7 with output 4; 5 and 6 are due, 7 is not.
	c.Resume(7, 4, append(numbered(5, 6, 100), numbered(7, 7, 200)...))
	for _, want := range []Publish{{Expect: 7}, {Expect: 8, Linked: true, Ack: true}} {
		got, ok := c.Next(150)
		if number := want.Expect - 7 + 5; !ok || got.Output.Number != number || got.Expect != want.Expect || got.Linked != want.Linked || got.Ack != want.Ack {
			t.Fatalf("sends %+v, expected output %d %+v", got, number, want)
		}
	}
	if _, ok := c.Next(199); ok {
		t.Fatal("output 7 is due at 200")
	}
	if at, ok := c.HoldUntil(); !ok || at != 200 {
		t.Errorf("holds until %d, %v", at, ok)
	}
	if stored := c.Acked(9); len(stored) != 2 || c.Stored() != (Acked{6, 9}) || c.InFlight() != 0 {
		t.Errorf("an ack for 9 speaks for %d outputs, up to %+v", len(stored), c.Stored())
	}
	for _, seq := range []uint64{9, 3, 10} { // a duplicate, a late one, one of a message that was never sent
		if stored := c.Acked(seq); stored != nil || c.Stored() != (Acked{6, 9}) {
			t.Errorf("an ack for %d speaks for %d outputs", seq, len(stored))
		}
	}
	if p, ok := c.Next(200); !ok || p.Output.Number != 7 || p.Expect != 9 || !p.Ack {
		t.Errorf("at its time output 7 is sent as %+v", p)
	}
	c.Lose()
	if c.Acked(10) != nil || c.InFlight() != 0 {
		t.Error("an ack after the loss speaks for what was given up")
	}
	c.Resume(10, 7, nil)
	for i, due := range []int64{200, 100, 300} { // the second overtakes the first
		if room := c.FreeWindow() + len(c.queue); room != windowMin {
			t.Errorf("before it is told its share, %d outputs may be under way with %d, want %d", room, i, windowMin)
		}
		c.Offer(numbered(8+uint64(i), 8+uint64(i), due))
	}
}

// The texts of stored outputs are freed at once, because a chain moves through its memory slowly, and payloads are large.
func TestChainFreesOutputs(t *testing.T) {
	c := NewChain()
	c.Share(1, MaxOvertakingWindow)
	c.Resume(0, 0, nil)
	made := numbered(1, 100, 50)
	for i := range made {
		made[i].Kind, made[i].Job, made[i].Event, made[i].Body, made[i].spec = OutputEvent, "job", "event", "body", "spec"
	}
	c.Offer(made)
	for range made {
		if _, ok := c.Next(50); !ok {
			t.Fatal("it does not send")
		}
	}
	for _, o := range c.Acked(60) {
		if o.Due != 50 || o.Kind != OutputEvent {
			t.Fatalf("of what is stored %+v is told", o)
		}
	}
	holds := func(want int) {
		t.Helper()
		held := 0
		for _, o := range c.buffer {
			if o.Job+o.Event+o.Body+string(o.spec) != "" {
				held++
			}
		}
		if held != want || len(c.queue) != want || c.queue[0].Body != "body" {
			t.Errorf("it holds the texts of %d outputs, want %d, and %d wait", held, want, len(c.queue))
		}
	}
	holds(40)
	for range 10 { // the queue comes to the end of its memory, and moves
		c.Offer(made[:60])
		holds(100)
		for range 60 {
			c.Next(50)
		}
		c.Acked(c.Stored().Seq + 60)
	}
	c.Lose()
	if c.Offer(made); len(c.queue) != 0 {
		t.Errorf("while it is lost it takes %d outputs, which come again when it is resumed", len(c.queue))
	}
}

// TestChainWindow fills a window: sending stops at its end, acks are asked for on the way, and FreeWindow is what is left.
func TestChainWindow(t *testing.T) {
	for _, chains := range []int{0, 1, 8, 1000} { // 0: the host knows of none that has something to publish
		c := NewChain()
		c.Share(chains, MaxOvertakingWindow)
		c.Resume(0, 0, nil)
		window := max(windowAll/max(chains, 1), windowMin)
		if c.FreeWindow() != window {
			t.Fatalf("room for %d, one of %d chains", c.FreeWindow(), chains)
		}
		c.Offer(numbered(1, 2*uint64(window), 0))
		sent, asked, pause := 0, 0, 0
		for {
			p, ok := c.Next(0)
			if !ok {
				break
			}
			sent++
			pause++
			if p.Ack {
				asked++
				pause = 0
			}
			if pause > window/acksInFlight {
				t.Fatalf("%d outputs in a row without an ack asked for", pause)
			}
		}
		if sent != window || asked != acksInFlight || pause != 0 || c.FreeWindow() != 0 {
			t.Errorf("sent %d, asked for %d acks, %d after the last, room for %d", sent, asked, pause, c.FreeWindow())
		}
		c.Acked(uint64(window / 2))
		if p, ok := c.Next(1); !ok || p.Output.Number != uint64(window)+1 || c.InFlight() != window/2+1 {
			t.Errorf("after an ack for half a window it sends %+v with %d in flight", p, c.InFlight())
		}
	}
}

// A chain that must share its window with others sends no more until less than its share is in flight.
func TestChainShares(t *testing.T) {
	c := NewChain()
	c.Share(1, MaxOvertakingWindow)
	c.Resume(0, 0, numbered(1, windowAll, 0))
	send := func() (sent int) {
		for {
			if _, ok := c.Next(0); !ok {
				return sent
			}
			sent++
		}
	}
	const share = windowAll / 4
	if sent := send(); sent != windowAll {
		t.Fatalf("alone it sends %d", sent)
	}
	c.Share(4, MaxOvertakingWindow)
	c.Acked(windowAll - share)
	c.Offer(numbered(windowAll+1, windowAll+share, 0))
	if sent := send(); sent != 0 || c.FreeWindow() != 0 {
		t.Errorf("with its share in flight it sends %d, and has room for %d", sent, c.FreeWindow())
	}
	c.Acked(windowAll - share + 10)
	if sent := send(); sent != 10 {
		t.Errorf("10 are stored, and it sends %d", sent)
	}
}

// While outputs overtake others that were due before them, three quarters of the window are open; not where messages are confirmed. An event
// is not due, and overtakes nothing.
func TestChainOvertaking(t *testing.T) {
	const window = windowAll / 16
	for _, confirms := range []bool{false, true} {
		c := NewChain()
		c.Share(16, MaxOvertakingWindow)
		open := func(want int) {
			t.Helper()
			if confirms {
				want = window
			}
			if room := c.FreeWindow() + len(c.queue); room != want {
				t.Errorf("%d outputs may be under way, want %d (confirms: %t)", room, want, confirms)
			}
		}
		if confirms {
			c.Confirm()
		}
		c.Resume(0, 0, nil)
		var number uint64
		now := int64(1000)
		offer := func(due int64) {
			number++
			c.Offer([]Output{{Number: number, Due: due}})
		}
		drain := func(outputs int) {
			for range outputs {
				offer(now)
				now++
				for {
					if _, ok := c.Next(now); !ok {
						break
					}
				}
				c.Acked(c.Stored().Seq + 1)
			}
		}
		drain(overtakingFor + 10)
		open(window)
		offer(0)
		offer(now)
		offer(now)
		open(window)
		offer(now - 500) // it waited behind an output of high priority that is due now
		open(window * 3 / 4)
		if c.Share(1000, MaxOvertakingWindow); !confirms && c.open() != windowMin {
			t.Errorf("one of 1000 chains may have %d outputs under way", c.open())
		}
		c.Share(16, MaxOvertakingWindow)
		drain(overtakingFor - 10)
		open(window * 3 / 4)
		drain(20)
		open(window)
	}
}

// Where messages are confirmed a window has a bound of its own.
func TestChainConfirmsFew(t *testing.T) {
	c := NewChain()
	c.Confirm()
	c.Share(1, MaxOvertakingWindow)
	c.Resume(0, 0, nil)
	if c.FreeWindow() != windowConfirmed {
		t.Errorf("room for %d", c.FreeWindow())
	}
}

// A chain whose messages are confirmed one by one: no ids, an ack for each, the first message goes alone, and nothing behind
// a missing ack counts.
func TestChainConfirms(t *testing.T) {
	c := NewChain()
	c.Confirm()
	c.Resume(7, 4, []Output{{Number: 5}, {Number: 6}, {Number: 7}, {Number: 8}})
	next := func(expect uint64) {
		t.Helper()
		p, ok := c.Next(0)
		if !ok || p.Expect != expect || p.Named || p.Linked || !p.Ack {
			t.Fatalf("%+v, %v: want one that expects %d, with an ack and without ids", p, ok, expect)
		}
	}
	next(7)
	if _, ok := c.Next(0); ok {
		t.Fatal("a second message goes before the first has its ack")
	}
	if _, ok := c.HoldUntil(); ok {
		t.Error("it says that it would send at some time")
	}
	if stored := c.Acked(8); len(stored) != 1 || stored[0].Number != 5 {
		t.Fatalf("stored: %v", stored)
	}
	next(8)
	next(9)
	next(10)
	if stored := c.Acked(8); stored != nil || c.Lost() {
		t.Errorf("a doubled ack: %v, lost: %v", stored, c.Lost())
	}
	if stored := c.Acked(10); stored != nil || !c.Lost() || c.Stored() != (Acked{5, 8}) {
		t.Errorf("the ack of one behind one that has none: %v, lost: %v, stored %v", stored, c.Lost(), c.Stored())
	}
	c.Resume(8, 5, []Output{{Number: 6}, {Number: 7}})
	next(8)
	if _, ok := c.Next(0); ok || !c.Confirms() {
		t.Error("resumed, it is another chain")
	}
}

// TestChainQueue has outputs come and go in steps of different sizes: each is sent once, in order, as it was, and the
// memory for them stays what a window needs.
func TestChainQueue(t *testing.T) {
	c := NewChain()
	c.Share(8, MaxOvertakingWindow)
	c.Resume(0, 0, nil)
	var offered, sent uint64
	for step := range uint64(10_000) {
		n := step * 7 % 300
		c.Offer(numbered(offered+1, offered+n, int64(step|1))) // in every other step they are not due yet
		offered += n
		for {
			p, ok := c.Next(int64(step))
			if !ok {
				break
			}
			sent++
			if p.Output.Number != sent || p.Expect != sent-1 {
				t.Fatalf("after %d outputs it sends number %d behind %d", sent-1, p.Output.Number, p.Expect)
			}
		}
		if c.InFlight() == len(c.queue) {
			c.Acked(sent - min(sent, step%3*100))
		} else {
			c.Acked(sent)
		}
	}
	if sent != offered {
		t.Errorf("%d outputs were sent of %d", sent, offered)
	}
	if len(c.buffer) > 16*windowAll/8 {
		t.Errorf("the queue has room for %d", len(c.buffer))
	}
}
