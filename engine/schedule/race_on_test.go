//go:build race

package schedule

const raceEnabled = true // the race detector makes the stepper ten times slower
