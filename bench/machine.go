package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// Machine is where a figure comes from.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryMiB int    `json:"memory_mib"`
	Kernel    string `json:"kernel"`
	Storage   string `json:"storage"`  // file system of the data directory; "" for a service that runs already
	Carillon  string `json:"carillon"` // the bench's version; a service that runs already may have another
	Go        string `json:"go"`
	NATS      string `json:"nats_server"`
	Pebble    string `json:"pebble"`
	Sync      string `json:"sync"` // what is on disk when
	// Replicas is how many the output streams have, and the ceiling's; 0 where there is no ceiling.
	Replicas int `json:"replicas,omitempty"`
	// Load is the load average of the last minute when the run began and when it ended. If it is higher than the run
	// itself explains, others were at work.
	Load [2]float64 `json:"load"`
}

// syncMode says what an embedded server and the engine around it do; asyncMode says it for output streams of persist_mode async.
const (
	syncMode  = "local log: fsync before a command counts; streams: page cache, made durable four times a second"
	asyncMode = "local log: fsync before a command counts; output streams: acknowledged before they are written"
)

// sync says what is on disk when.
func (s Service) sync() string {
	switch {
	case s.Server != "":
		return "as the service has it that runs already"
	case s.NATS != "":
		return "local log: fsync before a command counts; streams: as the NATS has it that runs already"
	case slices.Contains(s.Command, persistAsyncFlag):
		return asyncMode
	}
	return syncMode
}

// thisMachine describes the machine on which the run begins. dir is where the engine keeps its data, "" if that is
// not known here; sync says what is on disk when.
func thisMachine(dir, sync string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Sync: sync, NATS: server.VERSION, CPU: runtime.GOARCH, Kernel: runtime.GOOS, MemoryMiB: memoryMiB()}
	if v := field("/proc/cpuinfo", "model name"); v != "" {
		m.CPU = v
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel += " " + strings.TrimSpace(string(b))
	}
	if dir != "" {
		m.Storage = fileSystem(dir)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range append(info.Deps, &info.Main) {
			switch d.Path {
			case "github.com/cockroachdb/pebble/v2":
				m.Pebble = d.Version
			case "github.com/carillon-scheduler/carillon":
				m.Carillon = d.Version
				if d.Replace != nil { // by bench/peers' go.mod: then the version is a placeholder
					m.Carillon = "(devel)" // as Go calls a tree without a version
				}
			}
		}
	}
	m.Load[0] = load1()
	return m
}

// memoryMiB is how much memory the machine has; 0 if that is not known.
func memoryMiB() int {
	kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"))
	if err != nil {
		return 0
	}
	return kb >> 10
}

// field returns the value of the first "name : value" line with this name in a file of /proc.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load1 is the load average of a minute; 0 where the system does not say.
func load1() (v float64) {
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &v)
	}
	return v
}

func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d cores, %d MiB, %s, %s, carillon %s, %s, nats-server %s, pebble %s, load %.1f to %.1f; %s",
		m.CPU, m.Cores, m.MemoryMiB, m.Kernel, m.Storage, m.Carillon, m.Go, m.NATS, m.Pebble, m.Load[0], m.Load[1], m.Sync)
	if m.Replicas > 1 {
		s += fmt.Sprintf("; %d replicas", m.Replicas)
	}
	return s
}

// fileSystem is the type of the file system that holds a directory, "" where the system does not say.
func fileSystem(dir string) (kind string) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return ""
	}
	longest := 0
	for line := range strings.Lines(string(mounts)) { // device, mount point, type, …
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < longest {
			continue
		}
		if rest, ok := strings.CutPrefix(dir, f[1]); ok && (rest == "" || rest[0] == '/' || f[1] == "/") {
			longest, kind = len(f[1]), f[2]
		}
	}
	return kind
}
