package node

import (
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// apiPreview answers with the next times of a schedule, without a job.
func (n *Node) apiPreview(c *call) error {
	if err := acquire(n.requests.queries, "gets and previews"); err != nil {
		return err
	}
	defer func() { <-n.requests.queries }()
	p, err := carillon.ParsePreview(c.Data())
	if err != nil {
		return err
	}
	if err := checkBounds(p.Start, p.End); err != nil {
		return err
	}
	expr, err := schedule.Parse(p.Schedule, p.Zone, p.Gap, p.Fold)
	if err != nil {
		return err
	}
	if err := expr.CheckTime(p.Schedule); err != nil {
		return err
	}
	now := n.clock.ms()
	if err := expr.CheckAhead(now); err != nil {
		return err
	}
	after := now
	if !p.After.IsZero() {
		after = p.After.UnixMilli()
	}
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	plan := expr.Bind(now, ms(p.Start), ms(p.End), 0)
	r := carillon.PreviewReply{}
	for range p.Count {
		next, ok := plan.Next(after)
		if !ok {
			break
		}
		r.Next = append(r.Next, time.UnixMilli(next).UTC())
		after = next
	}
	return c.answer(r.AppendJSON(nil))
}
