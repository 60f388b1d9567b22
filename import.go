package carillon

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ImportJob is a job to be imported.
type ImportJob struct {
	Job      Job
	Paused   bool      // the job is paused before it can fire; false: an existing job that is paused stays paused
	State    *JobState // nil: the job begins now
	IfAbsent bool      // an existing job stays as it is
}

// ImportLine is a line of an import. A completed job is put only if it has a State.
type ImportLine struct {
	ImportJob
	Status Status // "": not given
}

// specLineFields are the fields of an import's line that has the job under "spec"; those after if_absent are fields of a
// reply, and ignored.
var specLineFields = []string{"id", "spec", "status", "state", "if_absent", "type", "version", "next", "last_scheduled", "fires", "skipped", "partition"}

// ParseImport reads a line of an import in either of its forms: a job with its "id", as ParseLine does, or what an export
// writes, {"id":…,"spec":{…},"status":…}. The other fields of the reply to a get are ignored, so that the output of
// 'job get --json' is a valid line, too. Errors are those of ParseLine.
func ParseImport(line []byte) (l ImportLine, err error) {
	var spec reader
	exported := false
	look := reader{b: line}
	look.space()
	e := look.members(func(name []byte, _ int) *Error {
		if string(name) != "spec" {
			return look.skip(1)
		}
		exported, spec.i = true, look.i
		e := look.skip(1)
		spec.b = line[:look.i] // from the line's beginning, so that the positions in errors are those in the line
		return e
	})
	switch {
	case !exported:
		l.Job, err = ParseLine(line)
		return l, err
	case e != nil:
		return l, e
	}
	var id string
	r := reader{b: line}
	e = r.document(specLineFields, func(name string) (e *Error) {
		switch name {
		case "id":
			id, e = r.text(name)
			return e
		case "spec":
			if r.peek() != '{' {
				return r.wrong(name, "an object")
			}
		case "status":
			return r.status(&l.Status)
		case "state":
			if r.peek() != '{' {
				return r.wrong(name, "an object")
			}
			l.State = new(JobState)
			return l.State.read(&r)
		case "if_absent":
			l.IfAbsent, e = r.bool(name)
			return e
		}
		return r.skip(1)
	})
	if e != nil {
		return ImportLine{}, e
	}
	if e := checkID(id); e != nil {
		return ImportLine{}, e
	}
	if e := l.Job.parse(&spec, jobFields, nil); e != nil {
		return ImportLine{}, e
	}
	l.Job.ID, l.Paused = id, l.Status == StatusPaused
	return l, nil
}

func (r *reader) status(status *Status) *Error {
	s, e := r.text("status")
	if e != nil {
		return e
	}
	if *status = Status(s); !slices.Contains([]Status{StatusScheduled, StatusPaused, StatusCompleted}, *status) {
		return errField(CodeInvalidField, "status", "is %s; expected scheduled, paused or completed", quote(s))
	}
	return nil
}

// AppendImport appends a line of an import, without a newline at its end, which ParseImport reads back. As with
// AppendLine, a JSON payload that holds line breaks is given as payload_text.
func AppendImport(dst []byte, j *ImportJob) []byte {
	if !j.Paused && j.State == nil && !j.IfAbsent {
		return j.Job.AppendLine(dst)
	}
	dst = appendString(append(dst, `{"id":`...), j.Job.ID)
	if j.Paused {
		dst = append(dst, `,"status":"paused"`...)
	}
	if j.State != nil {
		dst = j.State.append(append(dst, `,"state":`...))
	}
	if j.IfAbsent {
		dst = append(dst, `,"if_absent":true`...)
	}
	return append(j.Job.appendMembers(append(dst, `,"spec":{`...), true), "}}"...)
}

// ImportReply answers an import once everything that it counts is applied and durable. Each job is put on its own.
type ImportReply struct {
	Imported  uint64       // created or replaced
	Unchanged uint64       // already as asked
	LeftOut   uint64       // completed jobs without a State: putting them would fire them again
	Failed    []ImportFail // in the order of the lines
}

// ImportFail is a line of an import that was refused.
type ImportFail struct {
	Line  int    // from 1
	ID    string // "" where the line could not be read
	Error *Error
}

// AppendJSON appends a carillon.v1.import reply.
func (r *ImportReply) AppendJSON(dst []byte) []byte {
	dst = appendUint(append(dst, `{"type":"`+TypeImport+`","imported":`...), r.Imported)
	dst = appendUint(append(dst, `,"unchanged":`...), r.Unchanged)
	if r.LeftOut > 0 {
		dst = appendUint(append(dst, `,"completed_left_out":`...), r.LeftOut)
	}
	dst = append(dst, `,"failed":[`...)
	for i := range r.Failed {
		f := &r.Failed[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendUint(append(dst, `{"line":`...), uint64(f.Line))
		if f.ID != "" {
			dst = appendString(append(dst, `,"id":`...), f.ID)
		}
		dst = append(dst, `,"error":{`...)
		dst = append(f.Error.appendMembers(dst), "}}"...)
	}
	return append(dst, "]}"...)
}

// ParseImportReply reads the answer to an import.
func ParseImportReply(body []byte) (p ImportReply, err error) {
	r := reader{b: body, lenient: true}
	e := r.document([]string{"type", "imported", "unchanged", "completed_left_out", "failed"}, func(name string) (e *Error) {
		switch name {
		case "type":
			return r.expect(TypeImport)
		case "imported":
			p.Imported, e = r.integer(name, 0, maxInteger)
		case "unchanged":
			p.Unchanged, e = r.integer(name, 0, maxInteger)
		case "completed_left_out":
			p.LeftOut, e = r.integer(name, 0, maxInteger)
		case "failed":
			e = r.list(name, func() *Error {
				var f ImportFail
				e := f.read(&r)
				if e == nil && (f.Line == 0 || f.Error == nil) {
					e = errField(CodeInvalidField, name, "must have line and error")
				}
				p.Failed = append(p.Failed, f)
				return e
			})
		}
		return e
	})
	return p, replyError(e)
}

func (f *ImportFail) read(r *reader) *Error {
	return r.object([]string{"line", "id", "error"}, func(name string) (e *Error) {
		switch name {
		case "line":
			var line uint64
			line, e = r.integer(name, 1, MaxImportLines)
			f.Line = int(line)
		case "id":
			f.ID, e = r.text(name)
		case "error":
			var raw []byte
			raw, e = r.raw()
			f.Error = ParseError(raw)
		}
		return e
	})
}

// importRequests is how many requests of one import are under way at once: the service applies some while others are on their way.
// A request that was not answered in time is sent again alone (importing.again). If a service takes longer than the timeout for all
// of them together, and all were sent again together, it would do each of them again and again, and no answer would come in time.
const importRequests = 6

// importPatience is how long an import goes on while the service accepts none of its jobs, in timeouts of the client. A service makes
// room in its log by checkpoints, which take longer the more jobs there are, and meanwhile it may answer too late.
const importPatience = 10

var (
	noRoom  = &Error{Code: CodeLimitExceeded}
	unknown = &Error{Code: CodeUnavailable}
)

// Import puts many jobs, packed into few requests, at a fraction of the cost of as many Puts. It calls done with the outcome of each
// job, one call at a time: i is the job's place in the sequence, from 0, and err is one of Put's errors or nil. Import returns nil when
// all are done, or the context's error when the context has ended; jobs that were not sent by then are not reported. Jobs of one id are put
// in the order of the sequence, as by Puts one after the other, and jobs of different ids in no particular order. A JSON payload that holds
// line breaks is put as text.
//
// Some jobs are sent again: those for which the service has no room (CodeLimitExceeded), and those whose outcome is unknown
// (CodeUnavailable), which does no harm under the same Carillon-Request. Import gives them up when the service has accepted no job at
// all for ten times the client's timeout. A service that does not know imports is sent Puts.
func (c *Client) Import(ctx context.Context, jobs iter.Seq[ImportJob], done func(i int, err error)) error {
	im := newImporting(ctx, c)
	im.done, im.onReply = done, im.each
	if !c.imports(ctx) {
		return im.putAll(jobs)
	}
	return im.run(jobs)
}

// run sends all jobs.
func (im *importing) run(jobs iter.Seq[ImportJob]) error {
	for range importRequests {
		im.senders.Go(func() {
			for b := range im.batches {
				ids := b.ids // send may divide b
				im.send(b)
				im.release(ids)
			}
		})
	}
	defer im.senders.Wait()
	defer close(im.batches)
	return im.split(jobs)
}

// imports asks whether the service knows imports: a service that is there does not if nobody listens for them. One that is starting is
// waited for. If nothing answers in time, imports returns false, and the puts will say why.
func (c *Client) imports(ctx context.Context) bool {
	asked := func(verb Verb, query bool) error {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		_, err := c.try(ctx, nats.NewMsg(c.names.API(verb, "")), request{query: query, within: c.timeout})
		return err
	}
	taken := func() bool { return !errors.Is(asked(VerbImport, false), nats.ErrNoResponders) }
	began := time.Now()
	for pause := 5 * time.Millisecond; !taken(); pause = min(2*pause, time.Second) {
		if asked(VerbStatus, true) == nil { // a tenant is never answered that
			return taken() // it may have begun just now
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		if time.Since(began) > c.timeout {
			return false
		}
	}
	return true
}

// importing is one call of Import or Restore.
type importing struct {
	*Client
	ctx     context.Context
	batches chan *importBatch
	senders sync.WaitGroup
	again   chan struct{} // full while a request that was not answered is sent again

	mu      sync.Mutex
	done    func(i int, err error)
	onReply func(b *importBatch, reply ImportReply, err error) // reports each request's outcome; its caller holds mu
	refused time.Time                                          // since when the service has accepted no job of those sent; zero: it has

	claimed struct {
		sync.Mutex
		fewer sync.Cond
		ids   map[string]struct{} // of jobs that are under way
	}
}

func newImporting(ctx context.Context, c *Client) *importing {
	im := &importing{Client: c, ctx: ctx, batches: make(chan *importBatch), again: make(chan struct{}, 1)}
	im.claimed.fewer.L, im.claimed.ids = &im.claimed, make(map[string]struct{})
	return im
}

// claim waits until none of the ids is under way, and takes them: requests that are under way at once may overtake each other.
func (im *importing) claim(ids []string) {
	im.claimed.Lock()
	defer im.claimed.Unlock()
	under := func(id string) bool { _, ok := im.claimed.ids[id]; return ok }
	for slices.ContainsFunc(ids, under) {
		im.claimed.fewer.Wait() // not for long once ctx has ended: the requests under way end then
	}
	for _, id := range ids {
		im.claimed.ids[id] = struct{}{}
	}
}

func (im *importing) release(ids []string) {
	im.claimed.Lock()
	defer im.claimed.Unlock()
	for _, id := range ids {
		delete(im.claimed.ids, id)
	}
	im.claimed.fewer.Broadcast()
}

// importBatch is one request of an import.
type importBatch struct {
	id   string // of the request: the same for as long as its lines stay the same
	body []byte
	at   []int    // by line: the job's place in the sequence
	ids  []string // and its id

	tried bool // it was sent, and some of it may have been applied
}

func (b *importBatch) add(line []byte, at int, id string) {
	b.body, b.at, b.ids = append(b.body, line...), append(b.at, at), append(b.ids, id)
}

func (im *importing) report(i int, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.done(i, err)
}

// split fills requests and hands them to the senders.
func (im *importing) split(jobs iter.Seq[ImportJob]) error {
	limit := MaxImportBytes
	if most := int(im.nc.MaxPayload()); most > 0 { // else the connection has never been up
		limit = min(limit, most-1024)
	}
	b := &importBatch{}
	flush := func() error {
		im.claim(b.ids)
		select {
		case im.batches <- b:
			b = &importBatch{}
			return nil
		case <-im.ctx.Done():
			return im.ctx.Err()
		}
	}
	var line []byte
	i := -1
	for job := range jobs {
		i++
		err := CheckJobID(job.Job.ID)
		if err == nil {
			err = job.Job.Validate()
		}
		if err != nil {
			im.refuse(i, job.Job.ID, err)
			continue
		}
		line = append(AppendImport(line[:0], &job), '\n')
		if n := len(b.at); n == MaxImportLines || n > 0 && len(b.body)+len(line) > limit {
			if err := flush(); err != nil {
				return err
			}
		}
		b.add(line, i, job.Job.ID)
	}
	if len(b.at) == 0 {
		return nil
	}
	return flush()
}

// send sends a request and reports its jobs. Jobs for which the service has no room are sent again.
func (im *importing) send(b *importBatch) {
	var unanswered error // the previous try's, if its outcome is unknown
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if b.id == "" {
			b.id = rand.Text()[:10]
		}
		reply, err := im.request(b, unanswered)
		if unanswered = nil; errors.Is(err, unknown) {
			unanswered = err
		}
		full := b.full(reply, err)
		if patient := im.shouldRetry(err == nil && len(full) < len(b.at)); len(full) == 0 || !patient {
			if b.tried {
				reply.refusedLater()
			}
			im.settle(b, reply, err)
			return
		}
		applied := b.addLater(full) || b.tried
		if len(full) < len(b.at) {
			var settled *importBatch
			settled, b = b.divide(full, &reply)
			im.settle(settled, reply, nil)
		}
		b.tried = applied
		select {
		case <-time.After(pause):
		case <-im.ctx.Done(): // the next request fails at once, and is the last
		}
	}
}

func (im *importing) request(b *importBatch, unanswered error) (ImportReply, error) {
	if unanswered != nil {
		select {
		case im.again <- struct{}{}:
			defer func() { <-im.again }()
		case <-im.ctx.Done():
		}
		if im.ctx.Err() != nil { // nothing is sent now, but the previous try may have been applied
			return ImportReply{}, ended(im.ctx, unanswered)
		}
	}
	body, uncertain, err := im.ask(im.ctx, request{
		subject: im.names.API(VerbImport, ""), body: b.body, id: b.id, retry: true, within: im.timeout, tried: b.tried,
	})
	b.tried = uncertain
	if err != nil {
		return ImportReply{}, err
	}
	return ParseImportReply(body)
}

func (im *importing) settle(b *importBatch, reply ImportReply, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.onReply(b, reply, err)
}

// shouldRetry tells whether to go on sending what the service does not accept. some is whether it accepted some of the latest request.
func (im *importing) shouldRetry(some bool) bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case some:
		im.refused = time.Time{}
		return im.ctx.Err() == nil
	case im.refused.IsZero():
		im.refused = time.Now()
	}
	return im.ctx.Err() == nil && time.Since(im.refused) < importPatience*im.timeout
}

// full returns the lines, from 0, that the service had no room for; all of them if the whole request was refused or its outcome is
// unknown.
func (b *importBatch) full(reply ImportReply, err error) (lines map[int]bool) {
	lines = make(map[int]bool)
	if errors.Is(err, noRoom) || errors.Is(err, unknown) {
		for line := range b.at {
			lines[line] = true
		}
	}
	for _, f := range reply.Failed {
		if f.Line <= len(b.at) && errors.Is(f.Error, noRoom) {
			lines[f.Line-1] = true
		}
	}
	return lines
}

// addLater adds to the lines that are sent again those behind them with the same ids, though they may have been accepted: the last one
// is to count in the end. It tells whether there are any.
func (b *importBatch) addLater(full map[int]bool) (added bool) {
	again := make(map[string]bool)
	for line, id := range b.ids {
		switch {
		case full[line]:
			again[id] = true
		case again[id]:
			full[line], added = true, true
		}
	}
	return added
}

// refusedLater makes unknown outcomes of the refusals that say nothing about an earlier try.
func (r *ImportReply) refusedLater() {
	for i := range r.Failed {
		if f := &r.Failed[i]; errors.Is(f.Error, noRoom) {
			f.Error = refusedLater("an earlier try may have been applied", f.Error)
		}
	}
}

// divide splits the batch into the lines in full and the others, which are settled; reply is changed to be about the settled alone.
func (b *importBatch) divide(full map[int]bool, reply *ImportReply) (settled, rest *importBatch) {
	settled, rest = &importBatch{}, &importBatch{}
	moved := make(map[int]int) // a line from 0 to its number from 1 in settled
	line := 0
	for text := range bytes.Lines(b.body) {
		to := settled
		if full[line] {
			to = rest
		}
		to.add(text, b.at[line], b.ids[line])
		moved[line] = len(settled.at)
		line++
	}
	failed := reply.Failed[:0]
	accepted := uint64(len(full)) // of those that are sent again
	for _, f := range reply.Failed {
		line, sent := moved[f.Line-1]
		switch {
		case sent && !full[f.Line-1]:
			f.Line = line
			failed = append(failed, f)
		case sent && accepted > 0:
			accepted--
		}
	}
	reply.Failed = failed
	imported := min(accepted, reply.Imported) // or unchanged: the reply does not say which lines were
	reply.Imported -= imported
	reply.Unchanged -= min(accepted-imported, reply.Unchanged)
	return settled, rest
}

// refuse reports a job that is not sent.
func (im *importing) refuse(i int, id string, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.onReply(&importBatch{at: []int{i}, ids: []string{id}}, ImportReply{}, err)
}

// each reports a request's jobs one by one.
func (im *importing) each(b *importBatch, reply ImportReply, err error) {
	failed := make(map[int]error)
	for _, f := range reply.Failed {
		failed[f.Line-1] = f.Error
	}
	for line, i := range b.at {
		if err != nil {
			im.done(i, err)
			continue
		}
		im.done(i, failed[line])
	}
}

// putWindow is how many Puts are under way at once when they stand in for imports.
const putWindow = 256

// putAll is the import into a service that does not know imports.
func (im *importing) putAll(jobs iter.Seq[ImportJob]) error {
	type numbered struct {
		i int
		ImportJob
	}
	work := make(chan numbered)
	for range putWindow {
		im.senders.Go(func() {
			for job := range work {
				im.report(job.i, im.putPatiently(job.ImportJob))
				im.release([]string{job.Job.ID})
			}
		})
	}
	defer im.senders.Wait()
	defer close(work)
	i := 0
	for job := range jobs {
		im.claim([]string{job.Job.ID})
		select {
		case work <- numbered{i, job}:
		case <-im.ctx.Done():
			return im.ctx.Err()
		}
		i++
	}
	return nil
}

// putPatiently puts a job, unless the service has accepted none for too long.
func (im *importing) putPatiently(j ImportJob) error {
	if !im.shouldRetry(false) && im.ctx.Err() == nil {
		return &Error{Code: CodeUnavailable, Message: "nothing was sent, because the service has accepted no job for " + (importPatience * im.timeout).String()}
	}
	err := im.put(j)
	im.shouldRetry(!errors.Is(err, noRoom) && !errors.Is(err, unknown))
	return err
}

// put leaves no moment in which a job that is to be paused could fire: first it makes the job without a schedule and pauses it, then
// it puts the job as it is, because a put leaves a paused job paused.
func (im *importing) put(j ImportJob) error {
	if j.State != nil || j.IfAbsent {
		return &Error{Code: CodeUnavailable, Message: "the service knows no imports, and a put has no state"}
	}
	if !j.Paused {
		_, err := im.Put(im.ctx, j.Job)
		return err
	}
	_, err := im.Put(im.ctx, Job{ID: j.Job.ID}, IfVersion(0))
	if err != nil && !errors.Is(err, &Error{Code: CodeVersionConflict}) {
		return err
	}
	if _, err := im.Pause(im.ctx, j.Job.ID); err != nil {
		return err
	}
	r, err := im.Put(im.ctx, j.Job)
	if err == nil && r.Status == StatusScheduled { // the job had been completed, and a pause does not change a completed job
		_, err = im.Pause(im.ctx, j.Job.ID)
	}
	return err
}
