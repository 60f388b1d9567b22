package streams

import (
	"fmt"
	"os"
	"testing"
	"time"
	"github.com/nats-io/nats-server/v2/server"
	"strconv"
)

func TestExpENOSPC(t *testing.T) {
	h := &host{t: t, dir: "/tmp/small/js"}
	h.start()
	defer h.stop()
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1, AckTimeout: time.Second, LogMaxBytes: -1, OutMaxBytes: -1, PersistAsync: os.Getenv("ASYNC") != ""})
	f, _ := os.Create("/tmp/small/ballast")
	f.Write(make([]byte, 24<<20)); f.Close()
	o := s.Out[0]
	last := uint64(0)
	for {
		seq, err := publishChained(t, o, "carillon.trigger.0.x", make([]byte, 64<<10), last)
		if err != nil { fmt.Println("out fails at", last, err); break }
		last = seq
	}
	for i := 0; i < 2; i++ {
	_, err := publishChained(t, o, "carillon.trigger.0.x", nil, last)
	fmt.Println("again:", err)
	}
	_, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, make([]byte, 64<<10))
	fmt.Println("log 64K:", err)
	_, err = s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, make([]byte, 10))
	fmt.Println("log 10B:", err)
	l, m, err := o.Last(t.Context())
	fmt.Println("Last", l, m != nil, err)
	hs := h.ns.Load().Healthz
	_ = hs
	os.Remove("/tmp/small/ballast")
	fmt.Println("room again")
	_, err = publishChained(t, o, "carillon.trigger.0.x", nil, last)
	fmt.Println("out:", err)
	_, err = s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, make([]byte, 10))
	fmt.Println("log:", err)
	fmt.Println("purge log:", s.Log.Trim(t.Context(), 2))
	_ = server.VERSION
	h.stop(); h.start()
	eventually(t, "up", func() bool { _, err := o.Info(t.Context()); return err == nil })
	l, m, err = o.Last(t.Context())
	fmt.Println("restarted: Last", l, m != nil, err)
	seq, err := publishChained(t, o, "carillon.trigger.0.x", nil, l)
	fmt.Println("out:", seq, err)
	_, err = s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, make([]byte, 10))
	fmt.Println("log:", err)
}

func TestExpKillAsync(t *testing.T) {
	for _, async := range []bool{false, true} {
		for round := 0; round < 5; round++ {
	dir := t.TempDir()
	nc, kill := process(t, dir)
	s := open(t, nc, Config{Partitions: 1, PersistAsync: async})
	n := 20000 + round*777
	for i := range n - 1 {
		s.Out[0].PublishChained("carillon.trigger.0.x", nil, []byte(strconv.Itoa(i+1)), uint64(i), nil)
	}
	seq, err := publishChained(t, s.Out[0], "carillon.trigger.0.x", []byte(strconv.Itoa(n)), uint64(n-1))
	s.Close()
	kill()
	nc, kill = process(t, dir)
	s = open(t, nc, Config{Partitions: 1})
	last, m, e := s.Out[0].Last(t.Context())
	d := ""; if m != nil { d = string(m.Data) }
	fmt.Println("async", async, "acked", seq, err, "after kill last", last, d, e)
	seq, err = publishChained(t, s.Out[0], "carillon.trigger.0.x", nil, last)
	fmt.Println("   go on:", seq, err)
	s.Close()
	kill()
	}}
}
