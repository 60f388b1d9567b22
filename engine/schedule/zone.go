package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed" // the zone rules
	"io"
	"strings"
	"sync"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

var (
	//go:embed tzdata/zoneinfo.zip
	zoneinfo []byte
	//go:embed tzdata/VERSION
	tzVersion string
)

// TZVersion is the release of the IANA Time Zone Database that schedules are computed with, such as "2025c".
func TZVersion() string { return strings.TrimSpace(tzVersion) }

// zone is the offset from UTC over time. Period i is [at[i], at[i+1]) and has the offset off[i],
// all in seconds. The first begins in 1970 and the last ends at the Horizon, which is the last element of at.
// Neighbouring offsets differ.
type zone struct {
	at  []int64
	off []int64
}

// period returns the index of the period that t is in; t is from 1970 to before the Horizon.
func (z *zone) period(t int64) int {
	lo, hi := 0, len(z.off)
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) / 2); z.at[mid] <= t {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// zones has the *zone of each name used so far. It only saves work: a zone depends on nothing but its name.
var zones sync.Map

// zoneFiles are the files of the embedded archive by name.
var zoneFiles = sync.OnceValue(func() map[string]*zip.File {
	r, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		panic("schedule: the embedded zoneinfo.zip is broken: " + err.Error())
	}
	files := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		files[f.Name] = f
	}
	return files
})

func findZone(name string) (*zone, *carillon.Error) {
	if name == "" {
		name = "UTC"
	}
	if z, ok := zones.Load(name); ok {
		return z.(*zone), nil
	}
	f, err := zoneFile(name)
	if err != nil {
		return nil, err
	}
	z, _ := zones.LoadOrStore(name, newZone(location(f)))
	return z.(*zone), nil
}

func zoneFile(name string) (*zip.File, *carillon.Error) {
	f, ok := zoneFiles()[name]
	if !ok {
		return nil, invalidZone("%s is not a zone of the IANA database %s; write it like Europe/Paris", quote(name), TZVersion())
	}
	return f, nil
}

// Location returns a zone to show times in, by the rules that schedules are computed with. Empty is UTC.
// time.LoadLocation would take the machine's rules, which may be others, or not there.
//
// Errors: CodeInvalidZone.
func Location(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	f, err := zoneFile(name)
	if err != nil {
		return nil, err
	}
	return location(f), nil
}

// location reads a zone of the archive. The archive is part of the program: a fault in it is a bug.
func location(f *zip.File) *time.Location {
	r, err := f.Open()
	if err != nil {
		panic("schedule: embedded zone " + f.Name + ": " + err.Error())
	}
	data, err := io.ReadAll(r)
	if err != nil {
		panic("schedule: embedded zone " + f.Name + ": " + err.Error())
	}
	loc, err := time.LoadLocationFromTZData(f.Name, data)
	if err != nil {
		panic("schedule: embedded zone " + f.Name + ": " + err.Error())
	}
	return loc
}

func newZone(loc *time.Location) *zone {
	z := &zone{}
	for t := time.Unix(0, 0).In(loc); t.UnixMilli() < Horizon; {
		if _, off := t.Zone(); len(z.off) == 0 || z.off[len(z.off)-1] != int64(off) {
			z.at = append(z.at, t.Unix())
			z.off = append(z.off, int64(off))
		}
		_, end := t.ZoneBounds()
		if end.IsZero() {
			break
		}
		if !end.After(t) {
			// Beyond the zone's listed changes ZoneBounds takes a year to end after 365 days, so on the last day
			// of a leap year it returns an end in the past. No zone changes on that day, which a test checks.
			end = t.Add(daySeconds * time.Second)
		}
		t = end
	}
	z.at = append(z.at, Horizon/1000)
	return z
}
