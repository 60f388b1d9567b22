package node_test

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/engine/node"
)

// Only an address that is in use makes the error ask for another engine.
func TestHTTPAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for address, asks := range map[string]bool{taken.Addr().String(): true, "nowhere": false, "192.0.2.1:8080": false} {
		err := node.Run(t.Context(), node.Options{Data: t.TempDir(), HTTP: address}, nil)
		if err == nil || !strings.Contains(err.Error(), "cannot serve health and metrics on "+address) || strings.Contains(err.Error(), "another engine") != asks {
			t.Errorf("%s: %v", address, err)
		}
	}
}

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
			if code, _ := get(t, r.HTTP+path); code != want {
				t.Errorf("%s with profiles %t: status %d", path, asked, code)
			}
		}
	}
}
