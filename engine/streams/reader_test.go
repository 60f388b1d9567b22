package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

var errEnough = errors.New("enough")

// readTo reads after a position until the record last has come.
func readTo(t testing.TB, l *Log, after Position, last uint64) ([]Message, error) {
	t.Helper()
	ctx, cancel := cancelled(t)
	defer cancel()
	var all []Message
	err := l.Read(ctx, after, func(batch []Message) error {
		all = append(all, batch...)
		if all[len(all)-1].Seq >= last {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return all, nil
	}
	return all, err
}

func TestRead(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	const n = 30_000
	js, err := nc.JetStream(nats.PublishAsyncMaxPending(4000))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := nats.NewMsg("carillon.cmd.put." + strconv.Itoa(i))
		m.Header.Set("K", strconv.Itoa(i))
		m.Data = fmt.Appendf(nil, "%0300d", i)
		if _, err := js.PublishMsgAsync(m, nats.StallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()

	all, err := readTo(t, s.Log, Position{}, n)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != n {
		t.Fatalf("read %d records, want %d", len(all), n)
	}
	for i, m := range all {
		if m.Seq != uint64(i+1) || m.Subject != fmt.Sprintf("carillon.log.0.put.%d", i) ||
			m.Header.Get("K") != strconv.Itoa(i) || string(m.Data) != fmt.Sprintf("%0300d", i) {
			t.Fatalf("record %d is %d %s %v %s", i, m.Seq, m.Subject, m.Header, m.Data)
		}
	}
	mid := all[n/2]
	got, err := s.Log.Get(t.Context(), mid.Seq)
	if err != nil || got.Position() != mid.Position() {
		t.Errorf("read %v, got %v, %v", mid.Position(), got.Position(), err)
	}
	rest, err := readTo(t, s.Log, mid.Position(), n)
	if err != nil || len(rest) != n-n/2-1 || rest[0].Seq != mid.Seq+1 {
		t.Errorf("behind %d came %d records, %v", mid.Seq, len(rest), err)
	}
}

// Records that are cut off while a reader that has read nothing waits are not silently skipped.
func TestReadNothingYet(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1, Reader: "engine"})
	ctx, cancel := cancelled(t)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- s.Log.Read(ctx, Position{}, func(batch []Message) error {
			return fmt.Errorf("%d was read", batch[0].Seq)
		})
	}()
	for made := false; !made; {
		m, err := nc.Request("$JS.API.CONSUMER.INFO.CARILLON_LOG.engine", nil, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		made = !strings.Contains(string(m.Data), `"error"`)
	}
	if err := s.Log.Bump(t.Context(), 500); err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 1)
	var cut *CutError
	if err := <-ended; !errors.As(err, &cut) || cut.At.Seq != 0 || cut.First != 501 {
		t.Errorf("Read ended with %v", err)
	}
}

// Records that are appended while a reader waits come at once. Records that are cut off before they were read are not silently skipped.
func TestReadLive(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1, Reader: "engine"})
	ctx, cancel := cancelled(t)
	defer cancel()
	got, ended := readBeside(ctx, s.Log)
	for range 20 {
		at := appendLog(t, s.Log, 1)
		if seq := <-got; seq != at[0].Seq {
			t.Fatalf("read %d, want %d", seq, at[0].Seq)
		}
	}
	if err := s.Log.Bump(t.Context(), 500); err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 1)
	var cut *CutError
	if err := <-ended; !errors.As(err, &cut) || cut.At.Seq != 20 || cut.First != 501 {
		t.Errorf("Read ended with %v", err)
	}
	if len(got) > 0 {
		t.Errorf("behind the cut came %d", <-got)
	}
}

// A batch grows for as long as Config.Gather says, but only until it is full; a reader that ends does not wait for it.
func TestReadGathers(t *testing.T) {
	asked := make(chan struct{}, 1)
	s, _, _ := fresh(t, Config{Partitions: 1, Gather: func() time.Duration {
		select {
		case asked <- struct{}{}:
		default: // must not block after the test has failed
		}
		return time.Hour
	}})
	ctx, cancel := cancelled(t)
	defer cancel()
	batches, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		ended <- s.Log.Read(ctx, Position{}, func(batch []Message) error {
			batches <- len(batch)
			return nil
		})
	}()
	send := func(n int) {
		t.Helper()
		for range n {
			if err := s.Log.PublishAsync("carillon.log.0.tick", nil, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(1)
	<-asked
	send(batchMessages - 1)
	if n := <-batches; n != batchMessages {
		t.Errorf("%d records came together, want %d", n, batchMessages)
	}
	send(1)
	<-asked
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Read ended with %v", err)
	}
	if len(batches) > 0 {
		t.Errorf("%d records came when the reader had ended", <-batches)
	}
}

// A batch is delivered when the time is over for which it may grow, also if nothing follows.
func TestGatheringEnds(t *testing.T) {
	delivered := 0
	r := &reader{gather: func() time.Duration { return 1 }, deliver: func(batch []Message) error {
		delivered += len(batch)
		return nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := &nats.Msg{Subject: "carillon.log.0.tick", Reply: "$JS.ACK.CARILLON_LOG.engine.1.1.1.0.0"}
	if err := r.take(ctx, m, make(chan *nats.Msg)); err != nil || delivered != 1 {
		t.Errorf("%d were delivered, %v", delivered, err)
	}
}

// If a record that was read is gone, while others around it are there, the stream is another one.
func TestReadBehindDeleted(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	appendLog(t, s.Log, 1)
	seq, err := s.Log.Publish(t.Context(), "carillon.log.0.goes", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Log.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 1)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	log, err := js.Stream(t.Context(), s.Log.name)
	if err == nil {
		err = log.Purge(t.Context(), jetstream.WithPurgeSubject(m.Subject))
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := readTo(t, s.Log, m.Position(), seq+1)
	var differs *DiffersError
	if !errors.As(err, &differs) || differs.At != m.Position() || len(got) > 0 {
		t.Errorf("Read gave %d records and ended with %v", len(got), err)
	}
}

// A flow control request is answered once everything that the server sent before it is delivered.
func TestFlowControlIsAnswered(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	answers, err := nc.SubscribeSync("flow")
	if err != nil {
		t.Fatal(err)
	}
	delivered := 0
	r := &reader{stream: &s.Log.stream, batch: make([]Message, 3), deliver: func(batch []Message) error {
		delivered += len(batch)
		return nil
	}}
	for _, m := range []*nats.Msg{{Reply: "flow"}, {Header: nats.Header{"Nats-Consumer-Stalled": {"flow"}}}} {
		if err := r.control(m); err != nil {
			t.Fatal(err)
		}
		if _, err := answers.NextMsg(time.Minute); err != nil || delivered != 3 {
			t.Errorf("%d were delivered, %v", delivered, err)
		}
	}
}

// A batch of large records is full with few of them.
func TestReadBytesAreBounded(t *testing.T) {
	var batches []int
	r := &reader{gather: func() time.Duration { return time.Hour }, deliver: func(batch []Message) error {
		batches = append(batches, len(batch))
		return nil
	}}
	queue := make(chan *nats.Msg, 9)
	data := make([]byte, batchBytes/8)
	for i := range cap(queue) {
		queue <- &nats.Msg{Subject: "carillon.log.0.tick", Reply: fmt.Sprintf("$JS.ACK.CARILLON_LOG.engine.1.%d.%[1]d.0.0", i+1), Data: data}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so it must not wait for more than has arrived
	if err := r.take(ctx, <-queue, queue); err != nil || !slices.Equal(batches, []int{8}) {
		t.Errorf("batches of %d, %v, want one of 8", batches, err)
	}
}

// Holes are skipped, with a consumer as with questions to the stream.
func TestReadHoles(t *testing.T) {
	s, nc, h := fresh(t, Config{Partitions: 1, Reader: "engine"})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	log, err := js.Stream(t.Context(), s.Log.name)
	if err != nil {
		t.Fatal(err)
	}
	const records = 2*scanFew + 20 // so that one hole is longer than what is asked for at once
	for seq := 1; seq <= records; seq++ {
		subject := "carillon.log.0.stays"
		if seq%5 == 0 || seq > 10 && seq < scanFew+15 {
			subject = "carillon.log.0.goes"
		}
		if _, err := s.Log.Publish(t.Context(), subject, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	first := Position{Seq: 1}
	all, err := readTo(t, s.Log, first, records)
	if err != nil || len(all) != records-1 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	if err := log.Purge(t.Context(), jetstream.WithPurgeSubject("carillon.log.0.goes")); err != nil {
		t.Fatal(err)
	}
	var want []uint64
	for _, m := range all {
		if m.Subject == "carillon.log.0.stays" {
			want = append(want, m.Seq)
		}
	}
	holds := func(how string) {
		t.Helper()
		stay, err := readTo(t, s.Log, first, records)
		var got []uint64
		for _, m := range stay {
			got = append(got, m.Seq)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s gives %v, %v, want %v", how, got, err, want)
		}
	}
	holds("a consumer")
	account := h.account()
	if _, err := nc.SubscribeSync("nobody"); err != nil {
		t.Fatal(err)
	}
	if err := account.AddMapping("$JS.API.CONSUMER.CREATE.CARILLON_LOG.engine", "nobody"); err != nil {
		t.Fatal(err)
	}
	holds("the stream")
}

// The reader goes on by itself, without gap or repeat, when its consumer or the server goes away.
func TestReadGoesOn(t *testing.T) {
	resets := make(chan error, 100)
	s, nc, h := fresh(t, Config{Partitions: 1, Reader: "engine", OnReset: func(err error) {
		select {
		case resets <- err:
		default:
		}
	}})
	ctx, cancel := cancelled(t)
	defer cancel()
	got, ended := readBeside(ctx, s.Log)
	next := uint64(0)
	exchange := func() {
		t.Helper()
		for range 5 {
			appendLog(t, s.Log, 1)
			next++
			if seq := <-got; seq != next {
				t.Fatalf("read %d, want %d", seq, next)
			}
		}
	}
	exchange()

	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), "CARILLON_LOG", "engine"); err != nil {
		t.Fatal(err)
	}
	<-resets
	exchange()

	for range 3 {
		h.stop()
		h.start()
		eventually(t, "publishing works again", func() bool {
			_, err := s.Log.Info(t.Context())
			return err == nil
		})
		exchange()
	}

	// Someone else takes the name.
	other := open(t, h.connect(), Config{Reader: "engine"})
	all, err := readTo(t, other.Log, Position{}, next)
	if err != nil || len(all) != int(next) {
		t.Errorf("the other read %d records, %v", len(all), err)
	}
	<-resets
	exchange()

	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Read ended with %v", err)
	}
}

// A stream that does not hold what was read from it stops the reader, at first and after a restart.
func TestReadStops(t *testing.T) {
	s, nc, h := fresh(t, Config{Partitions: 1})
	at := appendLog(t, s.Log, 10)
	read := func(after Position) error {
		_, err := readTo(t, s.Log, after, 1<<60)
		return err
	}

	var rewound *RewoundError
	if err := read(Position{Seq: 11}); !errors.As(err, &rewound) || rewound.Last != 10 || rewound.At.Seq != 11 {
		t.Errorf("beyond the end: %v", err)
	}
	var differs *DiffersError
	wrong := Position{Seq: 10, Time: at[9].Time.Add(1)}
	if err := read(wrong); !errors.As(err, &differs) || !differs.Found.Equal(at[9].Time) || differs.At != wrong {
		t.Errorf("another time: %v", err)
	}
	if err := s.Log.Trim(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	wrong = Position{Seq: 8, Time: at[7].Time.Add(1)}
	if err := read(wrong); !errors.As(err, &differs) || !differs.Found.Equal(at[7].Time) || differs.At != wrong {
		t.Errorf("another time, of the first: %v", err)
	}
	var cut *CutError
	if err := read(at[5]); !errors.As(err, &cut) || cut.First != 8 || cut.At != at[5] {
		t.Errorf("cut: %v", err)
	}
	if err := read(Position{}); !errors.As(err, &cut) || cut.First != 8 || cut.At.Seq != 0 {
		t.Errorf("cut before anything was read: %v", err)
	}
	// Position 7 is gone, and everything after it is there.
	if all, err := readTo(t, s.Log, at[6], 10); err != nil || len(all) != 3 {
		t.Errorf("behind the cut: %d records, %v", len(all), err)
	}

	// The tail is lost while the reader waits: the store is replaced by an older copy.
	got := make(chan uint64, 100)
	ended := make(chan error, 1)
	ctx, cancel := cancelled(t)
	defer cancel()
	go func() {
		ended <- s.Log.Read(ctx, at[9], func(batch []Message) error {
			for _, m := range batch {
				got <- m.Seq
			}
			return nil
		})
	}()
	more := appendLog(t, s.Log, 1)
	if seq := <-got; seq != more[0].Seq {
		t.Fatalf("read %d, want %d", seq, more[0].Seq)
	}
	h.stop()
	h.dir = t.TempDir()
	h.start()
	js, err := jetstream.New(h.connect())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), Config{Partitions: 1}.withDefaults().logConfig()); err != nil {
		t.Fatal(err)
	}
	// Between the start and the creation the reader may have found no stream at all.
	if err := <-ended; !errors.Is(err, ErrNoStream) && !(errors.As(err, &rewound) && rewound.At == more[0]) {
		t.Errorf("the stream lost its tail: %v", err)
	}
	closed := make(chan error, 1)
	reads := make(chan struct{}, 100)
	go func() {
		closed <- s.Log.Read(t.Context(), Position{}, func([]Message) error {
			reads <- struct{}{}
			return nil
		})
	}()
	appendLog(t, s.Log, 1)
	<-reads
	nc.Close()
	if err := <-closed; !errors.Is(err, ErrDisconnected) {
		t.Errorf("the connection was closed: %v", err)
	}
	if err := read(Position{}); !errors.Is(err, ErrDisconnected) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// A reader that starts over while everything that it has read is being trimmed finds nothing wrong with the log.
func TestReadWhileTrimmed(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1})
	for range 300 {
		at := appendLog(t, s.Log, 1)[0]
		trimmed := make(chan error, 1)
		go func() { trimmed <- s.Log.Trim(t.Context(), at.Seq+1) }()
		for done := false; !done; {
			r := &reader{stream: &s.Log.stream, at: at}
			if err := r.checkPosition(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-trimmed:
				if done = true; err != nil {
					t.Fatal(err)
				}
			default:
			}
		}
	}
}

func TestReadDeliverError(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	appendLog(t, s.Log, 3)
	subscriptions := nc.NumSubscriptions()
	// Even an error that would make the reader start over ends Read if deliver returns it.
	for _, want := range []error{errEnough, ErrDisconnected, context.DeadlineExceeded} {
		calls := 0
		err := s.Log.Read(t.Context(), Position{}, func([]Message) error { calls++; return want })
		if !errors.Is(err, want) || calls != 1 {
			t.Errorf("Read ended with %v after %d calls, want %v", err, calls, want)
		}
	}
	if left := nc.NumSubscriptions() - subscriptions; left != 0 {
		t.Errorf("%d subscriptions are left", left)
	}
}

// When messages come both from the consumer and from questions to the stream, none comes twice, and none is skipped.
func TestReadBoth(t *testing.T) {
	var got []uint64
	r := &reader{at: Position{Seq: 7}, deliver: func(batch []Message) error {
		for _, m := range batch {
			got = append(got, m.Seq)
		}
		return nil
	}}
	gives := func(first, from, to uint64) error {
		a := answer{info: Info{First: first, Last: to}, upTo: to}
		for seq := from; seq <= to; seq++ {
			a.batch = append(a.batch, Message{Seq: seq})
		}
		_, err := r.answered(a)
		return err
	}
	if err := gives(1, 6, 9); err != nil || fmt.Sprint(got) != "[8 9]" {
		t.Errorf("behind 7 the stream gives 6 to 9, and %v come, %v", got, err)
	}
	queue := make(chan *nats.Msg, 3)
	for i := range cap(queue) { // one has headers, from its publisher, that make it look like a heartbeat
		queue <- &nats.Msg{Reply: fmt.Sprintf("$JS.ACK.CARILLON_LOG.engine.1.%d.%d.0.0", 8+i, 1+i), Header: nats.Header{"Status": {"100"}}}
	}
	if err := r.take(t.Context(), <-queue, queue); err != nil || fmt.Sprint(got) != "[8 9 10]" {
		t.Errorf("then the consumer sends 8 to 10, and %v have come, %v", got, err)
	}
	if err := gives(12, 12, 13); !errors.Is(err, errReset) || r.upTo() != 10 {
		t.Errorf("the stream begins behind 11, and the reader is at %d, %v", r.upTo(), err)
	}
}

// When a verdict against a stream comes again after the stream could be read, the time to confirm it begins anew.
func TestReadConfirmsAnew(t *testing.T) {
	s, _, h := fresh(t, Config{Partitions: 1})
	if err := h.account().AddMapping("$JS.API.STREAM.INFO.CARILLON_LOG", "nobody"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := cancelled(t)
	defer cancel()
	r := &reader{stream: &s.Log.stream, name: "engine", verdictSince: time.Now().Add(-ConfirmTime)}
	r.onReset = func(err error) {
		if isVerdict(err) || !r.verdictSince.IsZero() {
			t.Errorf("after %v it is in doubt since %v", err, r.verdictSince)
		}
		cancel()
	}
	if err := r.read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read ended with %v", err)
	}
}

// After a gap in what the consumer sends, or in what its heartbeat says it has sent, the reader starts over; what
// came before the gap is delivered.
func TestReaderSeesGaps(t *testing.T) {
	delivered := func(n int) *nats.Msg {
		return &nats.Msg{Reply: fmt.Sprintf("$JS.ACK.CARILLON_LOG.engine.1.%d.%d.1700000000000000000.0", 10+n, n)}
	}
	heard := func(last string) *nats.Msg {
		return &nats.Msg{Header: nats.Header{"Status": {"100"}, "Nats-Last-Consumer": {last}}}
	}
	for name, in := range map[string][]*nats.Msg{
		"a delivery is missing": {delivered(1), delivered(2), delivered(4)},
		"the last is missing":   {delivered(1), delivered(2), heard("3")},
		"not a delivery":        {delivered(1), delivered(2), {Reply: "_INBOX.x"}},
	} {
		var got []uint64
		r := &reader{at: Position{Seq: 10}, deliver: func(batch []Message) error {
			for _, m := range batch {
				got = append(got, m.Seq)
			}
			return nil
		}}
		queue := make(chan *nats.Msg, len(in))
		for _, m := range in[1:] {
			queue <- m
		}
		if err := r.take(t.Context(), in[0], queue); !errors.Is(err, errReset) || isVerdict(err) {
			t.Errorf("%s: %v", name, err)
		}
		if fmt.Sprint(got) != "[11 12]" || r.at.Seq != 12 {
			t.Errorf("%s: delivered %v, now at %v", name, got, r.at)
		}
	}
	r := &reader{}
	if err := r.take(t.Context(), heard("0"), make(chan *nats.Msg)); err != nil {
		t.Errorf("a heartbeat: %v", err)
	}
}

func TestParseDelivery(t *testing.T) {
	want := delivery{streamSeq: 12345, consumerSeq: 678, nanos: 1700000000123456789}
	for _, reply := range []string{
		"$JS.ACK.CARILLON_LOG.engine.1.12345.678.1700000000123456789.9",
		"$JS.ACK.dom.hash.CARILLON_LOG.engine.1.12345.678.1700000000123456789.9",
		"$JS.ACK._.hash.CARILLON_LOG.engine.1.12345.678.1700000000123456789.9.random",
	} {
		got, ok := parseDelivery(reply)
		if !ok || got != want {
			t.Errorf("%s: %+v, %t", reply, got, ok)
		}
		meta, err := (&nats.Msg{Reply: reply, Sub: &nats.Subscription{}}).Metadata()
		if err == nil && (meta.Sequence.Stream != got.streamSeq || meta.Sequence.Consumer != got.consumerSeq || meta.Timestamp.UnixNano() != got.nanos) {
			t.Errorf("%s: nats.go reads %+v", reply, meta)
		}
	}
	for _, reply := range []string{
		"", "_INBOX.x", "$JS.ACK.", "$JS.ACK.a.b.1.2.3.4", "$JS.ACK.a.b.1.x.3.4.5", "$JS.ACK.a.b.1..3.4.5",
		"$JS.ACK.a.b.1.2.3.4.5.6", "$JS.FC.a.b.1.2.3.4.5",
	} {
		if d, ok := parseDelivery(reply); ok {
			t.Errorf("%q: %+v", reply, d)
		}
	}
}

// A client may store any bytes as headers; they stop nothing.
func TestReadBadHeaders(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	forged := nats.NewMsg("carillon.cmd.put.a")
	forged.Header.Set("Nats-Sequence", "99")
	forged.Header.Set("Nats-Time-Stamp", "2001-01-01T00:00:00Z")
	forged.Header.Set("Status", "100")
	if _, err := nc.RequestMsg(forged, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	all, err := readTo(t, s.Log, Position{}, 1)
	if err != nil || len(all) != 1 || all[0].Seq != 1 || all[0].Subject != "carillon.log.0.put.a" {
		t.Fatalf("%+v, %v", all, err)
	}
	m, err := s.Log.Get(t.Context(), 1)
	if err != nil || m.Position() != all[0].Position() {
		t.Errorf("%+v, %v", m, err)
	}
}

// nats-server stores and sends a subject with a carriage return in it, which ends the client library's connection. The reader gets past such
// records all the same, with their subjects as they are, at its start and later.
func TestReadSubjectsThatBreak(t *testing.T) {
	s, _, h := fresh(t, Config{Partitions: 1, Reader: "engine"})
	rogue, err := h.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, rogue)
	defer rogue.Close()
	send := func(frames string) {
		t.Helper()
		if _, err := io.WriteString(rogue, frames); err != nil {
			t.Fatal(err)
		}
	}
	const broken = "PUB carillon.cmd.put.a\rb 2\r\n{}\r\n"
	send(`CONNECT {"verbose":false,"pedantic":false}` + "\r\n")
	send("PUB carillon.cmd.put.first 2\r\n{}\r\n" + strings.Repeat(broken, 100))
	ctx, cancel := cancelled(t)
	defer cancel()
	var mu sync.Mutex
	var subjects []string
	go func() {
		_ = s.Log.Read(ctx, Position{}, func(batch []Message) error { // until ctx ends
			mu.Lock()
			defer mu.Unlock()
			for _, m := range batch {
				if subjects = append(subjects, m.Subject); m.Seq != uint64(len(subjects)) {
					t.Errorf("record %d came in place %d", m.Seq, len(subjects))
				}
			}
			return nil
		})
	}()
	read := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d records come", n), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(subjects) == n
		})
	}
	read(101)
	send("PUB carillon.cmd.put.more 2\r\n{}\r\n" + broken + "PUB carillon.cmd.put.last 2\r\n{}\r\n")
	read(104)
	mu.Lock()
	defer mu.Unlock()
	for i, want := range map[int]string{0: "first", 1: "a\rb", 100: "a\rb", 101: "more", 102: "a\rb", 103: "last"} {
		if subjects[i] != "carillon.log.0.put."+want {
			t.Errorf("record %d: %q", i+1, subjects[i])
		}
	}
}

// A subject that is not UTF-8 is the same to all who read it, in whatever way.
func TestSubjectsThatAreNoText(t *testing.T) {
	s, _, h := fresh(t, Config{Partitions: 1, Reader: "engine"})
	rogue, err := h.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, rogue)
	defer rogue.Close()
	if _, err := io.WriteString(rogue, `CONNECT {"verbose":false,"pedantic":false}`+"\r\nPUB carillon.cmd.put.a\xff\xfe\xed\xa0\x80b 2\r\n{}\r\n"); err != nil {
		t.Fatal(err)
	}
	const want = "carillon.log.0.put.a\ufffd\ufffd\ufffd\ufffd\ufffdb"
	ctx, cancel := cancelled(t)
	defer cancel()
	read := make(chan string, 1)
	go func() {
		_ = s.Log.Read(ctx, Position{}, func(batch []Message) error { // until ctx ends
			read <- batch[0].Subject
			return nil
		})
	}()
	if got := <-read; got != want {
		t.Errorf("the reader has the subject %q, want %q", got, want)
	}
	if m, err := s.Log.Get(t.Context(), 1); err != nil || m.Subject != want {
		t.Errorf("an answer has the subject %q, %v, want %q", m.Subject, err, want)
	}
	if m, err := s.Log.direct(t.Context(), 1); err != nil || m.Subject != want {
		t.Errorf("a direct answer has the subject %q, %v, want %q", m.Subject, err, want)
	}
}

// A scan ends where it is told to, and begins where the stream does.
func TestScan(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1})
	out := s.Out[0]
	const messages = 10_000
	for i := range uint64(messages) {
		if err := out.PublishChained(chained("carillon.trigger.0.a", nil, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Flush()
	if _, err := publishChained(t, out, "carillon.trigger.0.a", nil, messages); err != nil {
		t.Fatal(err)
	}
	scan := func(after, last uint64) (seqs []uint64) {
		t.Helper()
		err := out.Scan(t.Context(), after, last, func(batch []Message) error {
			for _, m := range batch {
				seqs = append(seqs, m.Seq)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	whole := func(seqs []uint64, from, to uint64) {
		t.Helper()
		if uint64(len(seqs)) != to-from+1 || seqs[0] != from || seqs[len(seqs)-1] != to {
			t.Errorf("%d messages, want %d to %d", len(seqs), from, to)
		}
	}
	whole(scan(0, messages+1), 1, messages+1)
	whole(scan(17, 20), 18, 20)
	whole(scan(messages, messages+1), messages+1, messages+1)
	if seqs := scan(messages+1, messages+1); seqs != nil {
		t.Errorf("behind the end: %v", seqs)
	}
	var rewound *RewoundError
	if err := out.Scan(t.Context(), messages, 1<<40, func([]Message) error { return nil }); !errors.As(err, &rewound) || rewound.Last != messages+1 {
		t.Errorf("up to what the stream does not have: %v", err)
	}
	if err := out.purge(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	whole(scan(3, 105), 100, 105)
	whole(scan(90, 105), 100, 105)
	if seqs := scan(90, 99); seqs != nil {
		t.Errorf("before its beginning: %v", seqs)
	}
	stop := errors.New("stop")
	for _, last := range []uint64{200, 120} {
		if err := out.Scan(t.Context(), 100, last, func([]Message) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("deliver's error: %v", err)
		}
	}
	if err := out.purge(t.Context(), 200); err != nil { // only the last message is left, and ends the scan
		t.Fatal(err)
	}
	if err := out.Scan(t.Context(), 100, 200, func([]Message) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("deliver's error at the end: %v", err)
	}
	s.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := out.Scan(gone, 100, 120, func([]Message) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// A scan takes no longer if its consumer cannot be made or removed, because JetStream has no leader.
func TestScanWithoutConsumer(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1})
	const messages = 5 * scanFew
	chainAll(t, s.Out[0], 0, 0, messages)
	astray, err := nc.SubscribeSync("astray.*.*") // requests arrive here, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	if err := h.account().AddMapping("$JS.API.CONSUMER.*.CARILLON_OUT_0.*", "astray.$1.$2"); err != nil {
		t.Fatal(err)
	}
	seen := 0
	if err := s.Out[0].Scan(t.Context(), 0, messages, func(batch []Message) error { seen += len(batch); return nil }); err != nil || seen != messages {
		t.Errorf("%d messages, want %d: %v", seen, messages, err)
	}
	// A request without an answer is repeated while somebody waits for it: nobody waits any more for the consumer to be made, but
	// somebody still waits for it to be deleted.
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	before, _, err := astray.Pending()
	if err != nil {
		t.Fatal(err)
	}
	for range before {
		if _, err := astray.NextMsg(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := astray.NextMsg(time.Minute); err != nil || !strings.HasPrefix(m.Subject, "astray.DELETE.") {
		t.Errorf("once the scan has ended there is %+v, %v, and no word that its consumer is to end", m, err)
	}
}

// A scan's queue holds what it has to deliver, and no more: there may be many scans at a time.
func TestScanQueueSize(t *testing.T) {
	for _, c := range []struct{ after, last uint64 }{{0, 100}, {1 << 40, 1<<40 + 100}} {
		if r := (&reader{at: Position{Seq: c.after}, until: c.last}); r.queueSize() != 100+scanSlack {
			t.Errorf("a scan of 100 messages has room for %d", r.queueSize())
		}
	}
	for name, r := range map[string]*reader{"the log": {at: Position{Seq: 5}}, "a long scan": {until: 1 << 40}} {
		if r.queueSize() != readerQueue {
			t.Errorf("%s has room for %d", name, r.queueSize())
		}
	}
}

// Messages that were deleted are skipped, even at the end.
func TestScanGaps(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	out := s.Out[0]
	const messages = 3 * scanFew
	gone := []uint64{7, messages - 10, messages - 1, messages}
	for seq := uint64(1); seq <= messages; seq++ {
		subject := "carillon.trigger.0.stays"
		if slices.Contains(gone, seq) {
			subject = "carillon.trigger.0.goes"
		}
		if _, err := publishChained(t, out, subject, nil, seq-1); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), out.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("carillon.trigger.0.goes")); err != nil {
		t.Fatal(err)
	}
	for _, seq := range gone {
		if _, err := out.Get(t.Context(), seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("message %d that was deleted: %v", seq, err)
		}
	}
	if g, err := out.gaps(t.Context()); err != nil || g.has(1) || !g.has(7) || !g.has(messages) {
		t.Errorf("of the first, the 7th and the last message not only the first is there: %+v, %v", g, err)
	}
	for _, after := range []uint64{0, messages - scanFew} {
		next := after
		err := out.Scan(t.Context(), after, messages, func(batch []Message) error {
			for _, m := range batch {
				for next++; slices.Contains(gone, next); next++ {
				}
				if m.Seq != next {
					t.Errorf("message %d, want %d", m.Seq, next)
				}
			}
			return nil
		})
		if err != nil || next != messages-2 {
			t.Errorf("above %d: up to %d, %v", after, next, err)
		}
	}
}

// Messages that a power failure took from the end of a stream are not in the server's list of deleted ones, but count as gone, too.
func TestGapsAtTheEnd(t *testing.T) {
	s, nc, h := fresh(t, Config{Partitions: 1})
	h.answer(nc, "$JS.API.STREAM.INFO.CARILLON_LOG", `{"state":{"messages":2,"first_seq":3,"last_seq":7,"deleted":[4]}}`)
	g, err := s.Log.gaps(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(8) {
		if there := seq == 3 || seq == 5; g.has(seq) == there {
			t.Errorf("message %d is gone: %t", seq, there)
		}
	}
}

// If a server lacks what another one has acknowledged, what it has is not taken for the end of the stream: neither when it was the
// leader, nor when a consumer runs on it.
func TestScanBehind(t *testing.T) {
	s, nc, h := fresh(t, Config{Partitions: 1})
	b := &behind{host: h, nc: nc, out: s.Out[0], last: chainAll(t, s.Out[0], 0, 0, 10*scanFew), known: 9*scanFew + 10}
	var err error
	if b.info, err = b.out.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("messages", b.testMessages)
	t.Run("end", b.testEnd)
	t.Run("consumer", b.testConsumer)
}

// behind is a stream of which a server that answers lacks the end.
type behind struct {
	*host
	nc          *nats.Conn
	out         *OutStream
	last, known uint64 // sequences: the last one, and the last one that the server knows
	info        Info   // the truth
}

// scan scans from a sequence to the last one, and returns how far it came. No message may be missing or come twice.
func (b *behind) scan(t *testing.T, after uint64) (upTo uint64, err error) {
	upTo = after
	err = b.out.Scan(t.Context(), after, b.last, func(batch []Message) error {
		for _, m := range batch {
			if upTo++; m.Seq != upTo {
				t.Errorf("message %d came as the %d.", m.Seq, upTo)
			}
		}
		return nil
	})
	return upTo, err
}

// answerBehind has the server tell what it has as if that were the stream.
func (b *behind) answerBehind() (told func() int32, end func()) {
	b.t.Helper()
	return b.answer(b.nc, apiPrefix+"STREAM.INFO."+b.out.name, fmt.Sprintf(`{"state":{"messages":%d,"first_seq":%d,"last_seq":%d}}`, b.known, b.info.First, b.known))
}

// Messages are not found.
func (b *behind) testMessages(t *testing.T) {
	var r *reader
	ask := func() (more bool, err error) { return r.answered(b.out.next(t.Context(), r.upTo(), b.last)) }
	eventually(t, "the stream gives the first messages in time, and has more", func() bool {
		r = &reader{stream: &b.out.stream, until: b.last, deliver: func([]Message) error { return nil }}
		more, err := ask()
		if more && r.passed != scanFew || err != nil {
			t.Fatalf("up to %d, and more: %t, %v", r.passed, more, err)
		}
		return more
	})
	_, end := b.answer(b.nc, apiPrefix+"STREAM.MSG.GET."+b.out.name, `{"error":{"code":404,"err_code":10037,"description":"no message found"}}`)
	defer end()
	if more, err := ask(); more || err != nil || r.passed != scanFew {
		t.Errorf("no message is found: up to %d, and more: %t, %v", r.passed, more, err)
	}
	if upTo, err := b.scan(t, b.known); !errors.Is(err, ErrDisconnected) {
		t.Errorf("messages are not found: up to %d, %v", upTo, err)
	}
	if _, err := b.out.Get(t.Context(), b.last); !errors.Is(err, ErrDisconnected) {
		t.Errorf("a message is not found: %v", err)
	}
	if err := (&reader{stream: &b.out.stream, at: Position{Seq: b.last, Time: b.info.LastTime}}).checkPosition(t.Context()); !errors.Is(err, ErrDisconnected) {
		t.Errorf("the message last read is not found: %v", err)
	}
}

// The stream is said to end earlier.
func (b *behind) testEnd(t *testing.T) {
	_, end := b.answerBehind()
	defer end()
	var rewound *RewoundError
	if upTo, err := b.scan(t, 0); !errors.As(err, &rewound) {
		t.Errorf("the stream ends at %d: up to %d, %v", b.known, upTo, err)
	}
}

// The consumer has nothing. While the reader waits for it, the stream is behind at first, and has everything in the end.
func (b *behind) testConsumer(t *testing.T) {
	made, endConsumer := b.answer(b.nc, apiPrefix+"CONSUMER.CREATE."+b.out.name+".*", `{"num_pending":0}`)
	defer endConsumer()
	scanned := make(chan error, 1)
	var reached atomic.Uint64
	go func() {
		upTo, err := b.scan(t, 0)
		reached.Store(upTo)
		scanned <- err
	}()
	eventually(t, "the consumer is made", func() bool { return made() > 0 })
	asked, end := b.answerBehind()
	eventually(t, "the stream is asked again and again", func() bool { return asked() > int32(b.known/scanFew+4) || len(scanned) > 0 })
	end()
	if err := <-scanned; err != nil || reached.Load() != b.last {
		t.Errorf("up to %d of %d, %v", reached.Load(), b.last, err)
	}
}

// readBeside reads the log from its start on, until ctx ends: it gives the sequences that come, and then the error.
func readBeside(ctx context.Context, log *Log) (got chan uint64, ended chan error) {
	got, ended = make(chan uint64, 1000), make(chan error, 1)
	go func() {
		ended <- log.Read(ctx, Position{}, func(batch []Message) error {
			for _, m := range batch {
				got <- m.Seq
			}
			return nil
		})
	}()
	return got, ended
}

// readInOrder reads the log from its start on; no record may be missing or come twice. come waits until a given record is the last one
// read, and end ends the reading.
func readInOrder(t *testing.T, log *Log) (come func(what string, last uint64), end func()) {
	var applied atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- log.Read(ctx, Position{}, func(batch []Message) error {
			for _, m := range batch {
				if !applied.CompareAndSwap(m.Seq-1, m.Seq) {
					t.Errorf("record %d came behind %d", m.Seq, applied.Load())
				}
			}
			return nil
		})
	}()
	come = func(what string, last uint64) {
		t.Helper()
		eventually(t, what, func() bool { return applied.Load() == last })
	}
	return come, func() {
		t.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	}
}

// If a live consumer does not deliver what the stream has acknowledged, the reader gets it from the stream, and makes the consumer anew;
// also if another node appended it, and this one only hears where the log ends.
func TestReadBesideLateConsumer(t *testing.T) {
	t.Run("its own records", func(t *testing.T) { testReadBesideLateConsumer(t, false) })
	t.Run("another node's records", func(t *testing.T) { testReadBesideLateConsumer(t, true) })
}

func testReadBesideLateConsumer(t *testing.T, others bool) {
	h := newHost(t)
	nc := h.connect()
	var resets atomic.Uint64
	s := open(t, nc, Config{Partitions: 1, Reader: "engine", OnReset: func(err error) {
		if !strings.Contains(err.Error(), "the consumer is late") {
			t.Errorf("the reader starts over: %v", err)
		}
		resets.Add(1)
	}})
	writer := s.Log
	if others {
		writer = open(t, h.connect(), Config{Partitions: 1}).Log
	}
	come, end := readInOrder(t, s.Log)
	appendLog(t, writer, 10)
	come("records come", 10)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n <= 2; n++ {
		if _, err := js.PauseConsumer(t.Context(), "CARILLON_LOG", "engine", time.Now().Add(time.Hour)); err != nil { // it sends heartbeats
			t.Fatal(err)
		}
		appendLog(t, writer, 2*scanFew)
		if _, err := s.Log.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
		come("records come while the consumer sends none", n*(2*scanFew+10))
		eventually(t, "there is another consumer", func() bool { return resets.Load() == n })
		appendLog(t, writer, 10)
		come("records come by that", n*(2*scanFew+10)+10)
	}
	end()
}

// A log whose last records are gone, and that is idle, is asked for them once: then its consumer does not count as late, until there is
// another record.
func TestReadBesideLostEnd(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	appendLog(t, s.Log, 1)
	const gone = 2*scanFew + 1
	for range gone {
		if _, err := s.Log.Publish(t.Context(), "carillon.log.0.goes", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	log, err := js.Stream(t.Context(), s.Log.name)
	if err == nil {
		err = log.Purge(t.Context(), jetstream.WithPurgeSubject("carillon.log.0.goes"))
	}
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	r := &reader{stream: &s.Log.stream, known: s.Log.known.Load, heartbeat: time.Minute, deliver: func(batch []Message) error {
		reads += len(batch)
		return nil
	}}
	r.at.Seq, r.lastSent = 1, 1
	one, err := r.begin()
	if err != nil {
		t.Fatal(err)
	}
	defer one.end()
	one.running = true
	look := func(what string, late bool) {
		t.Helper()
		if err := one.checkLate(); err != nil || one.late != late {
			t.Fatalf("%s: %v; late: %t", what, err, one.late)
		}
	}
	ask := func() {
		t.Helper()
		one.askStream(t.Context())
		if err := one.takeAnswer(natstest.Receive(t, "the stream's answer", one.answers)); err != nil {
			t.Fatal(err)
		}
	}
	look("the first look", false)
	look("the log goes on", true)
	for range gone/scanFew + 1 {
		look("the stream has not said all", true)
		ask()
	}
	one.since = one.since.Add(-lateMost - 1)
	look("the stream has no more", false)
	look("it still has no more", false)
	appendLog(t, s.Log, 1)
	look("a record was stored", false)
	look("it has not come", true)
	ask()
	look("it came from the stream", true)
	one.since = one.since.Add(-lateMost - 1)
	if err := one.checkLate(); !errors.Is(err, errReset) || reads != 1 {
		t.Errorf("the consumer did not send it: %v; %d were read", err, reads)
	}
}

// A consumer that was heard and then is silent is given up after four heartbeats, and after two the stream is asked. One that was not
// made yet is waited for.
func TestSilentConsumer(t *testing.T) {
	s := &session{reader: &reader{}, ask: time.NewTicker(time.Hour)}
	defer s.ask.Stop()
	beats := func(n int) {
		t.Helper()
		for range n {
			if err := s.checkSilent(); err != nil {
				t.Fatal(err)
			}
		}
	}
	beats(10)
	s.heard()
	beats(4)
	natstest.Receive(t, "the stream is asked", s.ask.C)
	s.heard()
	beats(4)
	if err := s.checkSilent(); !errors.Is(err, errReset) {
		t.Errorf("after the fifth heartbeat that did not come: %v", err)
	}
}

// A consumer is late if it has not sent by the next look what the stream had by the last one, and nothing waits to be read. One that stays
// late for two seconds is given up, unless it sends what the stream has not given.
func TestLateConsumer(t *testing.T) {
	s := &session{
		reader: &reader{known: func() uint64 { return 10 }, lastSent: 9},
		ask:    time.NewTicker(time.Hour), queue: make(chan *nats.Msg, 1), running: true,
	}
	defer s.ask.Stop()
	look := func(what string, late bool) {
		t.Helper()
		if err := s.checkLate(); err != nil || s.late != late {
			t.Fatalf("%s: %v; late: %t", what, err, s.late)
		}
	}
	look("the first look", false)
	s.queue <- nil
	look("something waits to be read", false)
	<-s.queue
	look("message 10 has not come", true)
	natstest.Receive(t, "the stream is asked", s.ask.C)
	look("it is late for the second time", true)
	s.since = s.since.Add(-lateMost - 1)
	s.running = false
	look("the consumer is not made yet", true)
	if err := s.wasMade(nil); err != nil {
		t.Fatal(err)
	}
	look("it was made only now", true)
	s.lastSent = 10
	look("it has come", false)
	s.lastSent = 9
	look("late again", true)
	s.since = s.since.Add(-lateMost - 1)
	if err := s.checkLate(); !errors.Is(err, errReset) {
		t.Errorf("late for more than two seconds: %v", err)
	}

	s.sent = 1
	for s.lastSent = 2; s.lastSent < 9; s.lastSent++ { // what it sends is read at once
		look("a long way to the end", true)
		s.since = s.since.Add(-lateMost - 1)
	}
	s.at.Seq = 10
	if err := s.checkLate(); !errors.Is(err, errReset) {
		t.Errorf("it sends, and the stream is quicker, for more than two seconds: %v", err)
	}
}

// Await waits for the end of an election, but returns at once if there will never be a leader.
func TestAwait(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1})
	account := h.account()
	const info = "$JS.API.STREAM.INFO.CARILLON_LOG"
	asked := make(chan struct{}, 100)
	if _, err := nc.Subscribe("astray", func(m *nats.Msg) {
		asked <- struct{}{}
		_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`)) // a failure shows below
	}); err != nil {
		t.Fatal(err)
	}
	if err := account.AddMapping(info, "astray"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Log.Await(t.Context()) }()
	<-asked
	<-asked
	account.RemoveMapping(info)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "CARILLON_LOG"); err != nil {
		t.Fatal(err)
	}
	if err := s.Log.Await(t.Context()); !errors.Is(err, ErrNoStream) {
		t.Errorf("of a log that is not there: %v", err)
	}
}

// Records come without a consumer, too: while none can be made, and when it is gone. None comes twice.
func TestReadWithoutConsumer(t *testing.T) {
	t.Run("refused once, and then without an answer", func(t *testing.T) {
		const offline = `{"error":{"code":500,"err_code":10119,"description":"consumer is offline"}}`
		var once sync.Once
		testReadWithoutConsumer(t, func(m *nats.Msg) { once.Do(func() { _ = m.Respond([]byte(offline)) }) }) // a failure shows below
	})
	t.Run("refused at once, again and again", func(t *testing.T) { // JetStream has no leader
		const unavailable = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
		testReadWithoutConsumer(t, func(m *nats.Msg) { _ = m.Respond([]byte(unavailable)) })
	})
	t.Run("refused, as there are too many", func(t *testing.T) {
		const most = `{"error":{"code":400,"err_code":10026,"description":"maximum consumers limit reached"}}`
		testReadWithoutConsumer(t, func(m *nats.Msg) { _ = m.Respond([]byte(most)) })
	})
}

func testReadWithoutConsumer(t *testing.T, refuse nats.MsgHandler) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1, Reader: "engine"})
	account := h.account()
	const create = "$JS.API.CONSUMER.CREATE.CARILLON_LOG.engine"
	if _, err := nc.Subscribe("astray", refuse); err != nil {
		t.Fatal(err)
	}
	if err := account.AddMapping(create, "astray"); err != nil {
		t.Fatal(err)
	}
	come, end := readInOrder(t, s.Log)
	appendLog(t, s.Log, 2*scanFew)
	come("records come before there is a consumer", 2*scanFew)

	account.RemoveMapping(create)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a consumer is made", func() bool {
		_, err := js.Consumer(t.Context(), "CARILLON_LOG", "engine")
		return err == nil || errors.Is(err, jetstream.ErrNotPullConsumer)
	})
	appendLog(t, s.Log, 10)
	come("records come by the consumer", 2*scanFew+10)

	if err := account.AddMapping(create, "astray"); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), "CARILLON_LOG", "engine"); err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 10)
	come("records come when it is gone", 2*scanFew+20)
	account.RemoveMapping(create)
	end()
}

// Records from the consumer are delivered while a question to the stream has no answer yet, and the answer counts when it
// comes.
func TestReadWhileTheStreamIsAsked(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1})
	account := h.account()
	questions, err := nc.SubscribeSync("questions")
	if err != nil {
		t.Fatal(err)
	}
	if err := account.AddMapping("$JS.API.STREAM.INFO.CARILLON_LOG", "questions"); err != nil {
		t.Fatal(err)
	}
	var applied atomic.Uint64
	r := &reader{stream: &s.Log.stream, until: 1000, heartbeat: time.Minute, deliver: func(batch []Message) error {
		applied.Store(batch[len(batch)-1].Seq)
		return nil
	}}
	ended := make(chan error, 1)
	go func() { ended <- r.read(t.Context()) }()
	asked, err := questions.NextMsg(time.Minute) // the reader's question whether it is still the same stream
	if err == nil {
		err = asked.Respond([]byte(`{"state":{"first_seq":1}}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	over := func() bool { return len(ended) > 0 }
	eventually(t, "an answer counts after a record came", func() bool { // on a busy machine it may come too late
		asked, err := questions.NextMsg(time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			return over()
		}
		last := applied.Load() + 1
		appendLog(t, s.Log, 1)
		eventually(t, "a record comes", func() bool { return applied.Load() == last || over() })
		if err == nil {
			err = asked.Respond([]byte(`{"state":{"first_seq":2001,"last_seq":2001}}`))
		}
		if err != nil {
			t.Fatal(err)
		}
		return over()
	})
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Only a verdict about the stream itself ends a reader. For a stream with replicas it must be repeated for a while, because a
// former leader may lack what the others have.
func TestVerdicts(t *testing.T) {
	broken := &net.OpError{Op: "write", Err: errors.New("broken pipe")}
	for _, err := range []error{errReset, ErrDisconnected, ErrNoSpace, nats.ErrTimeout, context.DeadlineExceeded, broken, (&APIError{ErrCode: codeConsumerExists}).class()} {
		if isVerdict(err) {
			t.Errorf("%v ends a reader", err)
		}
	}
	rewound := &RewoundError{At: Position{Seq: 2}, Last: 1}
	if !isVerdict(rewound) || !isVerdict(&CutError{}) || !isVerdict(&DiffersError{}) || !isVerdict((&APIError{ErrCode: codeStreamNotFound}).class()) {
		t.Error("a stream that is another one is read on")
	}
	if err := (&APIError{ErrCode: codeStreamOffline}).class(); !errors.Is(err, ErrDisconnected) {
		t.Errorf("a stream whose servers are away: %v", err)
	}
	alone, one := &reader{replicas: 1}, &reader{replicas: 3}
	if alone.confirm(rewound) == nil {
		t.Error("the only server is not believed")
	}
	if alone := new(reader); alone.confirm(ErrNoStream) != nil {
		t.Error("a stream that is yet to be read is given up")
	}
	if one.confirm(rewound) != nil {
		t.Error("one of three is believed at once")
	}
	one.verdictSince = one.verdictSince.Add(-ConfirmTime)
	if one.confirm(rewound) == nil {
		t.Error("a stream is never believed")
	}
}

// A server that does not say since when it leads is compared by name only.
func TestSameLeader(t *testing.T) {
	since := Leader{"a", "2026-01-01T00:00:00Z"}
	for l, same := range map[Leader]bool{since: true, {"a", ""}: true, {"a", "2026-01-01T00:00:01Z"}: false, {"b", since.Since}: false, {"b", ""}: false, {}: false} {
		if l.Same(since) != same || since.Same(l) != same {
			t.Errorf("%v leads as %v does: %t", l, since, !same)
		}
	}
}

func TestLeads(t *testing.T) {
	type replica = struct {
		Name   string        `json:"name"`
		Active time.Duration `json:"active"`
	}
	for _, c := range []struct {
		what  string
		g     *group
		leads bool
	}{
		{"no cluster", nil, true},
		{"alone", &group{Leader: "a"}, true},
		{"no leader", &group{Replicas: []replica{{"b", 1}, {"c", 1}}}, false},
		{"one of two follows", &group{Leader: "a", Replicas: []replica{{"b", time.Second}, {"c", time.Minute}}}, true},
		{"none follows", &group{Leader: "a", Replicas: []replica{{"b", heardWithin}, {"c", 0}}}, false},
		{"a follower that has just heard of its leader", &group{Leader: "a", Replicas: []replica{{"a", 1}, {"c", 0}}}, false},
	} {
		if c.g.leads() != c.leads {
			t.Errorf("%s: %t", c.what, !c.leads)
		}
	}
}
