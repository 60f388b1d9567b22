package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// Before a partition's first tick its time is not told, rather than told wrong.
func TestStatusOfNewNode(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	m, err := nc.Request(carillon.DefaultNames().API(carillon.VerbStatus, ""), nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if body := string(m.Data); strings.Contains(body, `"now"`) || strings.Contains(body, "1970") || strings.Contains(body, "0001-") {
		t.Errorf("%s", body)
	}
	c := carillon.Connect(nc)
	began := time.Now()
	fires(t, c, in(0, "first"))
	if s := status(t, c); s.Partitions[0].Now.Sub(began).Abs() > time.Minute || !s.Partitions[1].Now.IsZero() {
		t.Errorf("partitions are at %s and %s", s.Partitions[0].Now, s.Partitions[1].Now)
	}
}
