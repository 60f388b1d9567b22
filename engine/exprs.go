package engine

import (
	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// exprs shares parsed schedules between jobs: most jobs have one of a few. Those of @at and @in are not shared by text,
// since a job's plan has the time itself.
type exprs struct {
	byKey  map[exprKey]exprRef
	all    []shared // by exprRef; once comes first
	free   []exprRef
	unused int // how many in byKey no job has
}

type exprKey struct {
	text, zone string
	gap        carillon.Gap
	fold       carillon.Fold
}

type shared struct {
	key  exprKey
	expr *schedule.Expr // nil: free
	jobs int
	memo schedule.Memo
}

// exprRef is a place in exprs.all.
type exprRef uint32

// unusedMax is how many schedules that no job has are kept, for the next job that wants them.
const unusedMax = 4096

// builtinExprs has one expression each for no schedule, @at and @in: the times of these are in the jobs' plans.
var builtinExprs = [...]*schedule.Expr{schedule.None: mustParse(""), schedule.At: mustParse("@at 1970-01-01T00:00:00Z"), schedule.In: mustParse("@in 1s")}

func mustParse(text string) *schedule.Expr {
	e, err := schedule.Parse(text, "", 0, 0)
	if err != nil {
		panic(err)
	}
	return e
}

func (x *exprs) init() {
	x.byKey = make(map[exprKey]exprRef)
	for _, e := range builtinExprs {
		x.all = append(x.all, shared{expr: e})
	}
}

func keyOf(j *carillon.Job) exprKey { return exprKey{j.Schedule, j.Zone, j.Gap, j.Fold} }

// parse returns the schedule of a job, and parses it if no other job has it.
func (x *exprs) parse(j *carillon.Job) (*schedule.Expr, error) {
	if ref, ok := x.byKey[keyOf(j)]; ok {
		return x.at(ref), nil
	}
	return schedule.Parse(j.Schedule, j.Zone, j.Gap, j.Fold)
}

func (x *exprs) at(ref exprRef) *schedule.Expr { return x.all[ref].expr }

// acquire stores a job's schedule, or counts one more job for it.
func (x *exprs) acquire(key exprKey, e *schedule.Expr) exprRef {
	if kind := e.Kind(); int(kind) < len(builtinExprs) {
		return exprRef(kind)
	}
	ref, ok := x.byKey[key]
	switch {
	case ok:
		if x.all[ref].jobs == 0 {
			x.unused--
		}
	case len(x.free) > 0:
		ref = x.free[len(x.free)-1]
		x.free = x.free[:len(x.free)-1]
		x.all[ref] = shared{key: key, expr: e}
	default:
		ref = exprRef(len(x.all))
		x.all = append(x.all, shared{key: key, expr: e})
	}
	x.byKey[key] = ref
	x.all[ref].jobs++
	return ref
}

// release notes that a job no longer has a schedule.
func (x *exprs) release(ref exprRef) {
	if int(ref) < len(builtinExprs) {
		return
	}
	if x.all[ref].jobs--; x.all[ref].jobs > 0 {
		return
	}
	if x.unused++; x.unused <= unusedMax {
		return
	}
	for ref := len(builtinExprs); ref < len(x.all); ref++ {
		if s := &x.all[ref]; s.expr != nil && s.jobs == 0 {
			delete(x.byKey, s.key)
			*s = shared{}
			x.free = append(x.free, exprRef(ref))
		}
	}
	x.unused = 0
}
