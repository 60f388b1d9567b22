package engine

import "testing"

// The header of an output, as it stands in docs/protocol.md.
func TestHeader(t *testing.T) {
	s := newScript()
	for _, line := range []string{
		"+0s claim",
		`+0s put a {"schedule":"@every 1s","headers":{"Tenant":"acme"}}`,
		"+1s tick",
		"+5s tick",
		"+5s fire a",
		"+5s put a {",
		"+6s tick",
	} {
		if _, err := s.run(line); err != nil {
			t.Fatal(err)
		}
	}
	outputs, _ := s.m.Outbox(0)
	for i, want := range []string{
		"Carillon-Output: 1\r\nCarillon-Job: a\r\nCarillon-Trigger: a@1796083201000\r\nCarillon-Scheduled: 2026-12-01T00:00:01.000Z\r\nCarillon-Version: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 2\r\nCarillon-Job: a\r\nCarillon-Trigger: a@1796083203000\r\nCarillon-Scheduled: 2026-12-01T00:00:03.000Z\r\nCarillon-Version: 1\r\nCarillon-Missed: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 3\r\nCarillon-Job: a\r\nCarillon-Trigger: a@1796083204000\r\nCarillon-Scheduled: 2026-12-01T00:00:04.000Z\r\nCarillon-Version: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 4\r\nCarillon-Job: a\r\nCarillon-Trigger: a@1796083205000\r\nCarillon-Scheduled: 2026-12-01T00:00:05.000Z\r\nCarillon-Version: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 5\r\nCarillon-Job: a\r\nCarillon-Trigger: a!5\r\nCarillon-Scheduled: 2026-12-01T00:00:05.000Z\r\nCarillon-Version: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 6\r\nCarillon-Job: a\r\nCarillon-Trigger: a@1796083206000\r\nCarillon-Scheduled: 2026-12-01T00:00:06.000Z\r\nCarillon-Version: 1\r\nTenant: acme\r\n",
		"Carillon-Output: 7\r\n", // an event
	} {
		if i >= len(outputs) {
			t.Fatalf("%d outputs", len(outputs))
		}
		if got := string(outputs[i].AppendHeader(nil)); got != want {
			t.Errorf("output %d: %q, want %q", i+1, got, want)
		}
	}
	o := outputs[4]
	o.Number, o.ForcedSeq, o.Version, o.Missed = 1<<40, 1<<41, 1<<42, 1<<43
	const want = "Carillon-Output: 1099511627776\r\nCarillon-Job: a\r\nCarillon-Trigger: a!2199023255552\r\nCarillon-Scheduled: 2026-12-01T00:00:05.000Z\r\nCarillon-Version: 4398046511104\r\nCarillon-Missed: 8796093022208\r\nTenant: acme\r\n"
	if got := string(o.AppendHeader(nil)); got != want || o.ID() != "a!2199023255552" {
		t.Errorf("of great numbers: %q, id %s", got, o.ID())
	}
}
