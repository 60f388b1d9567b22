package carillon

import (
	"fmt"
	"testing"
)

// Clients in other languages have these words from docs/protocol.md, so here they are written out.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		got  any
		want string
	}{
		{[]Code{
			CodeInvalidJobID, CodeInvalidJSON, CodeUnknownField, CodeInvalidSchedule, CodeInvalidZone, CodeInvalidTopic, CodeInvalidField,
			CodePayloadTooLarge, CodeNotFound, CodeVersionConflict, CodeLimitExceeded, CodeUnavailable, CodeInternal,
		}, "[invalid_job_id invalid_json unknown_field invalid_schedule invalid_zone invalid_topic invalid_field" +
			" payload_too_large not_found version_conflict limit_exceeded unavailable internal]"},
		{
			[]string{HeaderJob, HeaderTrigger, HeaderScheduled, HeaderVersion, HeaderOutput, HeaderMissed, HeaderRequest},
			"[Carillon-Job Carillon-Trigger Carillon-Scheduled Carillon-Version Carillon-Output Carillon-Missed Carillon-Request]",
		},
		{
			[]string{TypeJob, TypeJobs, TypePreview, TypeStatus, TypeDrain, TypeSelection, TypeImport, TypeSnapshot, TypeError, TypeEvent},
			"[carillon.v1.job carillon.v1.jobs carillon.v1.preview carillon.v1.status carillon.v1.drain carillon.v1.selection" +
				" carillon.v1.import carillon.v1.snapshot carillon.v1.error carillon.v1.event]",
		},
		{[]string{EventRejected, EventSkipped, EventCompleted, ReasonMisfire, ReasonExpired, ReasonPaused}, "[rejected skipped completed misfire expired paused]"},
		{[]Status{StatusScheduled, StatusPaused, StatusCompleted}, "[scheduled paused completed]"},
	} {
		if got := fmt.Sprint(c.got); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
