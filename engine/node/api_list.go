package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// Lists of jobs: a page is merged from the pages of all partitions.

// pageScan is how many jobs a list looks at while it holds a partition's lock.
const pageScan = 200

// pageJobs is how many jobs a list takes from a partition at most while it holds the lock.
const pageJobs = 100

// pageScanMost is how many jobs a list looks at in all partitions together before it answers with what it has: some tenths of a
// second in memory, a second on disk.
const pageScanMost = 100_000

// page collects up to limit jobs that match and come after an id. It ends earlier when they fill a message, or when it has looked at the
// partition's share of pageScanMost. last is the id up to which it looked; more tells whether there are jobs after that.
func (n *Node) page(p *partition, list *carillon.ListRequest, after string, limit int) (jobs []carillon.JobReply, last string, more bool) {
	size := 0
	more = true
	for looked := 0; more && len(jobs) < limit && size < carillon.MaxPageBytes && looked*len(n.partitions) < pageScanMost; looked += pageScan {
		var part []carillon.JobReply
		most := min(limit-len(jobs), pageJobs)
		read := n.readPageAhead(p, list, after, most)
		p.mu.Lock()
		part, after, more = p.machine.Page(list, after, most, pageScan, read)
		p.mu.Unlock()
		jobs = append(jobs, part...)
		for i := range part {
			bytes, _ := engine.SpecBytes(&part[i].Spec)
			size += bytes // less than the job's JSON, so the merged page is full before this one ends
		}
	}
	return jobs, after, more
}

// maxLists bounds the lists that are made at a time; each takes a MiB or so for each partition. Others wait for their turn, but
// only for acquireTimeout, which is less than a client waits: lists that nobody waits for any more would keep out others, and commands.
const (
	maxLists       = 32
	acquireTimeout = 1500 * time.Millisecond
)

// apiList answers with a page of the jobs of all partitions, in order of ids. The cursor is the last id, encoded.
func (n *Node) apiList(c *call) error {
	if err := acquire(n.requests.lists, "lists"); err != nil {
		return err
	}
	defer func() { <-n.requests.lists }()
	list, err := carillon.ParseList(c.Data())
	if err != nil {
		return err
	}
	if err := c.within(&list.Selection); err != nil {
		return err
	}
	after, err := base64.RawURLEncoding.DecodeString(list.Cursor)
	if err != nil || len(after) > 0 && carillon.CheckJobID(string(after)) != nil {
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "cursor", Message: "is not one that this service gave"}
	}
	here, there, err := n.whoFollows()
	if err != nil {
		return err
	}
	if len(here) > 0 { // nodes that are asked wait for themselves
		if err := n.readBarrier(here...); err != nil {
			return err
		}
	}
	r, err := mergeListings(n.listings(here, there, &list, string(after)), list.Limit, n.pageBytes())
	if err != nil {
		return err
	}
	if err := readable(here); err != nil {
		return err // jobs may be missing on the page
	}
	return c.answer(r.AppendJSON(nil))
}

// mergeListings merges the listings of all partitions into a page of at most so many jobs and bytes, or of a single job of any size.
// When a listing has no job left but is over, the page ends at the last id that it looked at: its next job may come before the others'.
func mergeListings(parts []listing, jobs, bytes int) (r carillon.JobsReply, err error) {
	size := 0
	for {
		next, short := &listing{}, &listing{}
		for i := range parts {
			l := &parts[i]
			if l.read(); l.err != nil {
				return r, l.err
			}
			switch {
			case len(l.jobs) > 0:
				if len(next.jobs) == 0 || l.jobs[0].ID < next.jobs[0].ID {
					next = l
				}
			case l.more && (!short.more || l.after < short.after):
				short = l
			}
		}
		if short.more && (len(next.jobs) == 0 || short.after < next.jobs[0].ID) {
			r.Cursor = base64.RawURLEncoding.EncodeToString([]byte(short.after))
			return r, nil
		}
		if len(next.jobs) == 0 {
			return r, nil
		}
		job := next.jobs[0]
		size += len(job.AppendJSON(nil)) + 1
		if len(r.Jobs) == jobs || size > bytes && len(r.Jobs) > 0 {
			r.Cursor = base64.RawURLEncoding.EncodeToString([]byte(r.Jobs[len(r.Jobs)-1].ID))
			return r, nil
		}
		r.Jobs, next.jobs = append(r.Jobs, job), next.jobs[1:]
	}
}

// pageBytes is how many bytes of jobs a page may have to fit into one message.
func (n *Node) pageBytes() int {
	return min(int(n.nc.MaxPayload()), carillon.MaxPageBytes) - 1024 // the rest of the page takes less
}

// listing is a partition's part of a page: the jobs that were read and not merged yet, and how to read more.
type listing struct {
	page  func(after string) (jobs []carillon.JobReply, last string, more bool, err error)
	jobs  []carillon.JobReply
	limit int    // of jobs that page returns at once
	after string // the last id that was looked at
	more  bool   // there are jobs after it
	over  bool   // enough was looked at for this page: page returned fewer than limit
	err   error
}

// read reads more jobs if none is left, and none of the reasons to stop applies.
func (l *listing) read() {
	if len(l.jobs) == 0 && l.more && !l.over && l.err == nil {
		l.jobs, l.after, l.more, l.err = l.page(l.after)
		l.over = len(l.jobs) < l.limit
	}
}

// listings returns the listings of all partitions. Those of other nodes have already been read, side by side.
func (n *Node) listings(here []*partition, there map[string][]*partition, list *carillon.ListRequest, after string) (parts []listing) {
	// A hash spreads the ids over the partitions, so a page takes about as many jobs from each. More would be read for nothing.
	share := list.Limit/len(n.partitions) + 8
	for name, ps := range there {
		for _, p := range ps {
			parts = append(parts, listing{limit: share, after: after, more: true, page: func(after string) ([]carillon.JobReply, string, bool, error) {
				return n.askPage(name, p.number, list, after, share)
			}})
		}
	}
	var asking sync.WaitGroup
	for i := range parts {
		asking.Go(parts[i].read)
	}
	asking.Wait()
	for _, p := range here {
		parts = append(parts, listing{limit: share, after: after, more: true, page: func(after string) ([]carillon.JobReply, string, bool, error) {
			jobs, last, more := n.page(p, list, after, share)
			return jobs, last, more, nil
		}})
	}
	return parts
}

// askPage is page for a partition that another node follows.
func (n *Node) askPage(name string, partition int, list *carillon.ListRequest, after string, limit int) (jobs []carillon.JobReply, last string, more bool, err error) {
	ask := *list
	ask.Limit, ask.Cursor = min(limit, carillon.MaxListLimit), ""
	body, err := json.Marshal(&ask)
	if err != nil {
		return nil, "", false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	answer, err := n.askNode(ctx, name, "page", nats.Header{headerPartitions: {strconv.Itoa(partition)}, headerAfter: {after}}, body)
	if err != nil {
		return nil, "", false, err
	}
	r, err := carillon.ParseJobsReply(answer.Data)
	return r.Jobs, answer.Header.Get(headerAfter), answer.Header.Get(headerMore) != "", err
}

// apiPage answers with a page of a partition's jobs.
func (n *Node) apiPage(c *call) error {
	list, err := carillon.ParseList(c.Data())
	if err != nil {
		return err
	}
	ps, err := n.namedPartitions(c)
	if err != nil {
		return err
	}
	p := ps[0]
	if err := n.readBarrier(p); err != nil {
		return err
	}
	jobs, after, more := n.page(p, &list, c.Headers().Get(headerAfter), list.Limit)
	if err := p.readable(); err != nil {
		return err
	}
	var r carillon.JobsReply
	size := 0
	for i := range jobs {
		size += len(jobs[i].AppendJSON(nil)) + 1
		if i > 0 && size > n.pageBytes() {
			after, more = jobs[i-1].ID, true
			break
		}
		r.Jobs = append(r.Jobs, jobs[i])
	}
	header := nats.Header{headerAfter: {after}}
	if more {
		header.Set(headerMore, "true")
	}
	return c.publish(&nats.Msg{Header: header, Data: r.AppendJSON(nil)})
}
