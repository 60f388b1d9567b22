package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// A zone that only the service's rules have is not dropped without a word.
func TestPreviewOfUnknownZone(t *testing.T) {
	var out, errOut bytes.Buffer
	a := &app{stdout: &out, stderr: &errOut}
	if err := a.printPreview([]time.Time{time.Date(2027, 1, 15, 9, 0, 0, 0, time.UTC)}, "Mars/Olympus"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(errOut.String(), "have no Mars/Olympus; the times are in UTC\n") || !strings.Contains(out.String(), "09:00:00.000 UTC  2027-01-15T09:00:00.000Z") {
		t.Errorf("it printed\n%sand\n%s", out.String(), errOut.String())
	}
}
