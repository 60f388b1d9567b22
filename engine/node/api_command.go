package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Commands: how they are checked before they go into the log.

// handleCommand checks a command before it goes into the log, so that one that is refused costs nothing there. It answers when the
// command has come back through the log.
func (n *Node) handleCommand(r micro.Request, verb carillon.Verb) {
	c, err := n.begin(r)
	if c == nil {
		return
	}
	if err == nil {
		err = carillon.CheckJobID(c.job) // before it is forwarded, in a subject that may be longer than this one and than nats-server takes
	}
	p := n.partitionOf(c.job)
	p.unanswered.Add(1) // before follows and unfollowing are read: unfollow waits for unanswered commands
	if err == nil && (!p.follows.Load() || !c.forwarded && (p.unfollowing.Load() || !n.answersHere(p))) {
		p.unanswered.Add(-1)
		go func() { n.end(c, n.forward(c, p)) }()
		return
	}
	began := time.Now()
	if err == nil {
		err = n.requests.congestion.admits(began, n.requests.calls.Load())
	}
	if err == nil {
		err = n.replies.admits()
	}
	if err == nil {
		err = n.check(c, verb)
	}
	if err != nil {
		p.unanswered.Add(-1)
		n.end(c, err)
		return
	}
	n.submit(verb, c.job, c.Headers().Get(carillon.HeaderRequest), c.Data(), func(r reply) {
		p.unanswered.Add(-1)
		if r.noRoom {
			r = unknown("too many answers wait to be sent")
		}
		now := time.Now()
		n.requests.congestion.note(now, now.Sub(began), r.err)
		if r.err != nil {
			n.end(c, r.err)
			return
		}
		n.end(c, c.answerJob(&r.job))
	})
}

func (n *Node) check(c *call, verb carillon.Verb) error {
	if err := c.mayID(c.job); err != nil {
		return err
	}
	if err := checkRequest(c.Headers().Get(carillon.HeaderRequest), carillon.MaxJobIDLength); err != nil {
		return err
	}
	switch verb {
	case carillon.VerbPut:
		job, _, err := carillon.ParsePut(c.Data())
		if err != nil {
			return err
		}
		job.ID = c.job
		if err := c.mayPut(&job); err != nil {
			return err
		}
		return n.checkPut(&job, true)
	case carillon.VerbFire:
		_, _, err := carillon.ParseFire(c.Data())
		return err
	default:
		_, err := carillon.ParseCondition(c.Data())
		return err
	}
}

// checkRequest refuses a request id that is too long. Beyond 64 KiB of headers JetStream does not take a command at all, and its outcome
// would be told as unknown.
func checkRequest(id string, most int) error {
	if len(id) <= most {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidField, Field: carillon.HeaderRequest, Message: fmt.Sprintf("has %d bytes, at most %d", len(id), most),
	}
}

// checkPut refuses what the machine would refuse, too, and new jobs while there is no room on disk. It refuses four more things, which
// machines accept because existing logs have them: a header that workers could not read, a start or end that means "no bound", and,
// if the job has no state yet (isNew), an @at that is no RFC 3339, and a schedule without a time that is still to come.
func (n *Node) checkPut(job *carillon.Job, isNew bool) error {
	for name := range job.Headers {
		if strings.EqualFold(name, "Status") {
			// Client libraries would take the trigger for a status message, and end the consumer or skip the trigger, which nobody would
			// acknowledge.
			return &carillon.Error{
				Code: carillon.CodeInvalidField, Field: "headers",
				Message: fmt.Sprintf("the name %q is reserved: to a worker a message that has it is the NATS server's own word", name),
			}
		}
	}
	if err := checkBounds(job.Start, job.End); err != nil {
		return err
	}
	expr, err := schedule.Parse(job.Schedule, job.Zone, job.Gap, job.Fold)
	if err != nil {
		return err
	}
	if isNew {
		if err := expr.CheckTime(job.Schedule); err != nil {
			return err
		}
		if err := expr.CheckAhead(n.clock.ms()); err != nil {
			return err
		}
	}
	if !n.refuseJobs.Load() || !n.partitionOf(job.ID).follows.Load() { // a node that follows the partition knows whether it has room
		return nil
	}
	if _, exists := n.job(job.ID); exists {
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("less than %d MiB of disk are free: no new jobs are taken", n.o.FreeForJobs>>20)}
}

// checkBounds refuses the one instant that means "no bound" to the machine. @every would not count from such a start, and the job would
// not end at such an end.
func checkBounds(start, end time.Time) error {
	var field string
	switch epoch := time.UnixMilli(0); {
	case start.Equal(epoch):
		field = "start"
	case end.Equal(epoch):
		field = "end"
	default:
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidField, Field: field,
		Message: "is 1970-01-01T00:00:00Z, which stands for no bound; expected a later time. For @every any later one of its times is the same start",
	}
}
