package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/carillon-scheduler/carillon"
)

// Commands that are carried out on each job of a selection.

// maxSelections bounds the selections in progress, each of which has up to 256 commands in progress.
const maxSelections = 16

// apiSelection carries a command out on each job of a selection. It is not one transaction: each job is
// a command of its own in the log.
func (n *Node) apiSelection(c *call, verb carillon.Verb) error {
	defer n.requests.selections.Add(-1)
	if n.requests.selections.Add(1) > maxSelections {
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d selections are in progress", maxSelections)}
	}
	s, err := carillon.ParseSelection(c.Data())
	if err != nil {
		return err
	}
	if err := c.within(&s); err != nil {
		return err
	}
	here, there, err := n.whoFollows()
	if err != nil {
		return err
	}
	var elsewhere carillon.SelectionReply
	var failed error
	var work sync.WaitGroup
	work.Go(func() { elsewhere, failed = n.askSelections(there, verb, &s) })
	counts, err := n.commandEach(here, verb, &s)
	work.Wait()
	if err := cmp.Or(err, failed); err != nil {
		return err // the counts would not be of the whole selection
	}
	addCounts(&counts, &elsewhere)
	return c.answer(counts.AppendJSON(nil))
}

// commandEach carries a command out on each job of a selection in partitions that this node follows.
func (n *Node) commandEach(ps []*partition, verb carillon.Verb, s *carillon.Selection) (counts carillon.SelectionReply, err error) {
	if len(ps) == 0 {
		return counts, nil
	}
	if err := cmp.Or(n.readBarrier(ps...), readable(ps)); err != nil {
		return counts, err
	}
	list := carillon.ListRequest{Selection: *s}
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := make(chan struct{}, 256)
	for _, p := range ps {
		for after, more := "", true; more; {
			var page []carillon.JobReply
			page, after, more = n.page(p, &list, after, carillon.MaxListLimit)
			for _, job := range page {
				slots <- struct{}{}
				work.Go(func() {
					defer func() { <-slots }()
					r := n.command(verb, job.ID)
					mu.Lock()
					defer mu.Unlock()
					counts.Matched++
					switch {
					case r.err == nil && r.changed:
						counts.Changed++
					case r.err == nil, r.err.Code == carillon.CodeNotFound:
						counts.Unchanged++
					default:
						counts.Failed++
					}
				})
			}
		}
	}
	work.Wait()
	return counts, readable(ps) // an error means that jobs may have been missed
}

// askSelections has other nodes carry out a command on the jobs of a selection that are in their partitions.
func (n *Node) askSelections(there map[string][]*partition, verb carillon.Verb, s *carillon.Selection) (sum carillon.SelectionReply, err error) {
	body, err := json.Marshal(s)
	if err != nil {
		return sum, err
	}
	err = n.askEach(context.Background(), there, "select."+string(verb), body, func(answer []byte) error {
		var r carillon.SelectionReply
		err := json.Unmarshal(answer, &r)
		addCounts(&sum, &r)
		return err
	})
	return sum, err
}

// addCounts adds the counts of some partitions to a sum.
func addCounts(sum, of *carillon.SelectionReply) {
	sum.Matched += of.Matched
	sum.Changed += of.Changed
	sum.Unchanged += of.Unchanged
	sum.Failed += of.Failed
}

// apiSelect is apiSelection for some partitions.
func (n *Node) apiSelect(c *call) error {
	s, err := carillon.ParseSelection(c.Data())
	if err != nil {
		return err
	}
	ps, err := n.namedPartitions(c)
	if err != nil {
		return err
	}
	counts, err := n.commandEach(ps, carillon.Verb(c.job), &s)
	if err != nil {
		return err
	}
	return c.answer(counts.AppendJSON(nil))
}
