package engine

import (
	"testing"

	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// saved is a machine with the table that its checkpoints go to.
type saved struct {
	m     *Machine
	table memtable.Table
}

// checkpoint takes one in slices of n.
func (s *saved) checkpoint(n int) error {
	c := s.m.BeginCheckpoint()
	for c.Next(n) {
	}
	return s.commit(c)
}

// opened takes a checkpoint, and returns the machines that go on from it: with all jobs in memory, and with as few as possible.
func (s *saved) opened(t *testing.T) map[string]*Machine {
	t.Helper()
	if err := s.checkpoint(1000); err != nil {
		t.Fatal(err)
	}
	opened := make(map[string]*Machine)
	for what, open := range map[string]func(Layout, int, Table) (*Machine, error){"all in memory": Open, "cold": OpenCold} {
		m, err := open(s.m.layout, s.m.partition, s.table.View())
		if err != nil {
			t.Fatal(err)
		}
		opened[what] = m
	}
	return opened
}

// evictAll takes a checkpoint, after which the machine reads the table as it is then, and what may leave memory has left it.
func (s *saved) evictAll(t *testing.T) {
	t.Helper()
	if err := s.checkpoint(1000); err != nil {
		t.Fatal(err)
	}
	s.m.Attach(s.table.View())
	for s.m.EvictCommitted(1000) {
	}
}

func (s *saved) commit(c *Checkpoint) error {
	b := s.table.Begin()
	c.Write(b, c.to.position)
	if err := b.Commit(); err != nil {
		return err
	}
	c.Committed()
	return nil
}

// reopen goes on with the machine as of the newest checkpoint.
func (s *saved) reopen() (err error) {
	bounds := s.m.bounds
	if s.m, err = Open(s.m.layout, s.m.partition, s.table.View()); err == nil {
		s.m.SetBounds(bounds)
	}
	return err
}

// wholeOf is a machine's whole state, as a table would have it.
func wholeOf(t testing.TB, m *Machine) memtable.View {
	t.Helper()
	var table memtable.Table
	b := table.Begin()
	if err := m.Export(b, m.position); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	return table.View()
}

// open is a machine restored from a table.
func open(t testing.TB, like *Machine, table Table) *Machine {
	t.Helper()
	m, err := Open(like.layout, like.partition, table)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// same fails if two machines have different states.
func same(t testing.TB, a, b *Machine) {
	t.Helper()
	if x, y := wholeOf(t, a).Dump(), wholeOf(t, b).Dump(); x != y {
		t.Fatalf("the machines differ:\n%s\n%s", x, y)
	}
}
