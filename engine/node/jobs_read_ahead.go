package node

import (
	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
)

// Jobs that a request asks for are read from disk before the partition's lock is taken.

// readAhead reads jobs that a request asks for from the job table, unless they are in memory, so that the partition does not wait for the
// disk. If this fails, or all are in memory, the result is nil: then the machine reads what it needs itself, and reports what is wrong.
func (n *Node) readAhead(p *partition, ids []string) *engine.ReadAhead {
	p.mu.Lock()
	read, cold := p.machine.ReadAhead(), p.machine.Cold(ids)
	p.mu.Unlock()
	if len(cold) == 0 {
		return nil
	}
	err := n.jobTable.View(uint16(p.number), func(v *snapshot.View) error { return read.Read(v, cold) })
	if err != nil {
		return nil
	}
	return read
}

// readPageAhead is readAhead for a page of up to limit jobs of a list.
func (n *Node) readPageAhead(p *partition, list *carillon.ListRequest, after string, limit int) *engine.ReadAhead {
	p.mu.Lock()
	read, all := p.machine.ReadAhead(), p.machine.Complete()
	p.mu.Unlock()
	if all {
		return nil
	}
	err := n.jobTable.View(uint16(p.number), func(v *snapshot.View) error {
		if err := read.Scan(v, list, after, pageScan); err != nil {
			return err
		}
		p.mu.Lock()
		cold := p.machine.Cold(read.IDs())
		p.mu.Unlock()
		if takesAll(list) {
			cold = cold[:min(len(cold), limit)]
		}
		return read.Read(v, cold)
	})
	if err != nil {
		return nil
	}
	return read
}

// takesAll tells whether a list takes each job that it looks at, because it selects by nothing but a prefix of the ids.
func takesAll(list *carillon.ListRequest) bool {
	rest := *list
	rest.Prefix, rest.Limit, rest.Cursor = "", 0, ""
	return rest == (carillon.ListRequest{})
}
