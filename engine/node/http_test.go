package node_test

import (
	"net/http"
	"testing"
)

// A node serves profiles only if it was asked to.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{true, false} {
		o := base(t)
		o.Profiles = asked
		r := run(t, o)
		profiles := map[bool]int{true: http.StatusOK, false: http.StatusNotFound}[asked]
		for path, want := range map[string]int{
			"/healthz": http.StatusOK, "/debug/pprof/": profiles, "/debug/pprof/heap": profiles,
			"/debug/pprof/profile?seconds=1": profiles, "/debug/pprof/trace?seconds=0.1": profiles,
		} {
			resp, err := http.Get(r.HTTP + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s with profiles %t: %s", path, asked, resp.Status)
			}
		}
	}
}
