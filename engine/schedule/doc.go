// Package schedule parses the schedules of jobs and computes their fire times: one-shots (@at, @in),
// intervals (@every) and cron expressions in a time zone with defined rules for changes of the clock.
//
//	e, err := schedule.Parse("0 30 9 * * MON-FRI", "Europe/Paris", carillon.GapShift, carillon.FoldFirst)
//	plan := e.Bind(accepted, 0, 0, schedule.Offset("invoice-7", spread))
//	at, ok := plan.Next(now)
//
// Jobs with the same cron expression mostly ask for the same fire, one after the other. So a Memo keeps the
// expression's last answer for all of them (Plan.NextWith).
//
// Times are Unix milliseconds in UTC. Nothing here reads a clock, the system's zone files or anything
// else outside the program, so the same call gives the same answer on every machine; the zone rules are
// a copy of the IANA database inside the package (see TZVersion). docs/time.md is the specification.
//
// The cron part is our own because no Go library that we tried keeps the rules that we promise.
// robfig/cron v3.0.1 refuses L, W and #; hashicorp/cronexpr v1.1.3 and adhocore/gronx v1.20.4 refuse
// L-3, and gronx LW. All three drop "30 2 * * *" on the day the hour is skipped; the first two fire it
// twice on the day the hour is repeated, and gronx leaves out an hour of "*/30 * * * *" on that day.
//
// A reading order: schedule.go (Parse), plan.go, cron.go, next.go (how the next fire is found), zone.go.
package schedule
