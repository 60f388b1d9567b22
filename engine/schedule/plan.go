package schedule

// Plan is an expression bound to one job. It is a small comparable value; the zero Plan never fires.
type Plan struct {
	e      *Expr
	from   int64 // the first fire; for Cron, the earliest time that a fire may have
	end    int64 // fires are before it
	offset int64 // added to every fire; from and end do not include it
}

// Bind makes the plan of a job. accepted is when it was accepted: the anchor of @in, and of @every
// if start is 0. Fires are at or after start and before end; 0 is no bound. offset (see Offset)
// is added to each of them afterwards. All are milliseconds.
func (e *Expr) Bind(accepted, start, end, offset int64) Plan {
	accepted, start = min(accepted, Horizon), min(start, Horizon)
	if end == 0 {
		end = Horizon
	}
	p := Plan{e: e, from: max(start, 0), end: min(end, Horizon), offset: offset}
	switch e.kind {
	case None, Cron:
	case At, In:
		at := e.ms
		if e.kind == In {
			at += accepted
		}
		if at < start {
			at = Horizon // before its own start: never
		}
		p.from = at
	case Every:
		if start == 0 {
			p.from = accepted + e.ms
		}
	}
	return p
}

// Fields returns the fields of a plan beside its expression. With them, Expr.Plan makes the plan again.
func (p Plan) Fields() (from, end, offset int64) { return p.from, p.end, p.offset }

// Plan returns the plan with these fields. For @at and @in any expression of the same kind will do.
func (e *Expr) Plan(from, end, offset int64) Plan { return Plan{e, from, end, offset} }

// Memo keeps the last answer of a cron expression for the plans that share it: jobs with one expression
// mostly ask for the same fire one after the other. The zero Memo is empty.
type Memo struct {
	from, next int64 // the first match from any second in [from, next] on is next; 0: empty
}

// Next returns the first fire strictly after the given time. Both are in milliseconds and include the plan's
// offset. ok is false if there is none any more.
func (p Plan) Next(after int64) (at int64, ok bool) { return p.NextWith(&Memo{}, after) }

// NextWith is Next with the memo of the plan's expression, which it uses and updates.
func (p Plan) NextWith(memo *Memo, after int64) (at int64, ok bool) {
	if p.e == nil {
		return 0, false
	}
	// The time that the fire comes after, as it would be without the offset.
	after = min(max(after, -1)-p.offset, Horizon)
	at = p.from
	switch p.e.kind {
	case None:
		return 0, false
	case At, In:
		if at <= after {
			return 0, false
		}
	case Every:
		if at <= after {
			at += ((after-at)/p.e.ms + 1) * p.e.ms
		}
	case Cron:
		after = max(after, p.from-1) // at least -1
		s := (after + 1000) / 1000
		if memo.next == 0 || s < memo.from || s > memo.next {
			next, found := p.e.cron.next(s)
			if !found {
				return 0, false
			}
			*memo = Memo{s, next}
		}
		at = memo.next * 1000
	}
	if at >= p.end {
		return 0, false
	}
	return at + p.offset, true
}

// Count counts the fires in (after, until]. last is the latest of them, or after if n is 0. For cron
// it counts at most budget fires; done is false if there may be more, and a call with after = last
// goes on. The other kinds need no budget: to count them takes constant time.
func (p Plan) Count(after, until int64, budget int) (n, last int64, done bool) {
	if p.e != nil && p.e.kind == Cron {
		for last = after; n < int64(budget); {
			at, ok := p.Next(last)
			if !ok || at > until {
				return n, last, true
			}
			most := min(until-p.offset, p.end-1) / 1000
			more, s := p.e.cron.hour((at-p.offset)/1000, most, int64(budget)-n-1)
			n, last = n+1+more, s*1000+p.offset
		}
		return n, last, false
	}
	first, ok := p.Next(after)
	if !ok || first > until {
		return 0, after, true
	}
	if p.e.kind != Every {
		return 1, first, true
	}
	k := (min(until, p.end-1+p.offset) - first) / p.e.ms
	return k + 1, first + k*p.e.ms, true
}

// Offset is a job's place in its spread: a number of milliseconds in [0, spread), always the same
// for the same id; 0 if spread is not positive. It is the FNV-1a 64 hash of the id, mixed by
// the finalizer of MurmurHash3 so that ids which differ only in the last character get very different offsets, modulo
// spread.
func Offset(jobID string, spread int64) int64 {
	if spread <= 0 {
		return 0
	}
	h := uint64(14695981039346656037)
	for i := range len(jobID) {
		h = (h ^ uint64(jobID[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return int64(h % uint64(spread))
}
