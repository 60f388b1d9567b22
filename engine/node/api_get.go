package node

import (
	"fmt"
	"strconv"

	"github.com/carillon-scheduler/carillon"
)

// maxQueries bounds the gets and previews that are being answered at a time: what is read and sent takes twice the job's payload, and while
// thousands of goroutines want the core, ticks wait for it.
const maxQueries = 32

func (n *Node) apiGet(c *call) error {
	if err := carillon.CheckJobID(c.job); err != nil {
		return err
	}
	if err := c.mayID(c.job); err != nil {
		return err
	}
	p := n.partitionOf(c.job)
	if !p.follows.Load() || !c.forwarded && !n.answersHere(p) {
		return n.forward(c, p)
	}
	if err := n.readBarrier(p); err != nil {
		return err
	}
	if err := acquire(n.requests.queries, "gets and previews"); err != nil {
		return err
	}
	defer func() { <-n.requests.queries }()
	job, ok := n.job(c.job)
	if err := p.readable(); err != nil {
		return err
	}
	if !ok {
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "there is no job " + strconv.Quote(c.job)}
	}
	return c.answer(job.AppendJSON(nil))
}

func (n *Node) job(id string) (carillon.JobReply, bool) {
	p := n.partitionOf(id)
	read := n.readAhead(p, []string{id})
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Job(id, read)
}

// readable returns an error if what this node knows of the jobs of some partitions must not be used for an answer.
func readable(ps []*partition) error {
	for _, p := range ps {
		if err := p.readable(); err != nil {
			return err
		}
	}
	return nil
}

// readable is readable for one partition: it must still be followed, and reading its table must not have failed.
func (p *partition) readable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.follows.Load() {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("partition %d is not followed here any more", p.number)}
	}
	if err := p.machine.Err(); err != nil {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: unreadable(p.number, err).Error()}
	}
	return nil
}
