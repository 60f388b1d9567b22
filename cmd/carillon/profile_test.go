package main

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The program is compiled with default.pgo, and default.pgo is a profile of this code. Go says nothing if there is no profile, or if it is
// of other packages.
func TestProfile(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var profile string
	for _, s := range info.Settings {
		if s.Key == "-pgo" {
			profile = s.Value
		}
	}
	if filepath.Base(profile) != "default.pgo" {
		t.Fatalf("compiled with profile %q, expected default.pgo", profile)
	}

	f, err := os.Open("default.pgo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	names, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for _, hot := range []string{
		"github.com/carillon-scheduler/carillon/engine.(*Machine).Apply", "github.com/carillon-scheduler/carillon/wheel.(*Wheel).Advance",
		"github.com/nats-io/nats-server/v2/server.(*client).parse",
	} {
		if !bytes.Contains(names, []byte(hot)) {
			t.Errorf("default.pgo says nothing of %s: take it anew (make profile)", hot)
		}
	}
}
