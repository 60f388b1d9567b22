package node_test

import (
	"net/http"
	"testing"
)

// Profiles are there where they were asked for, and nowhere else.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{true, false} {
		o := base(t)
		o.Profiles = asked
		r := run(t, o)
		want := map[bool]int{true: http.StatusOK, false: http.StatusNotFound}[asked]
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/trace?seconds=0.1"} {
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
