package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// DefaultFreeForJobs is the default of Options.FreeForJobs, in bytes.
const DefaultFreeForJobs = 2 << 30

// Options say how a node runs. The zero value of a field is its default, except Data.
type Options struct {
	Data       string // directory of everything that the node stores
	Name       string // of this node in claims and status: letters, digits, -, _ and, without NATS, dots; default the host's
	Listen     string // address for NATS clients of the embedded server; default 127.0.0.1:4222
	HTTP       string // address of /healthz, /readyz and /metrics; default 127.0.0.1:8080; "off" for none
	Profiles   bool   // serve Go's profiles under that address, too
	Partitions int    // fixed when the streams are made; default 8, or what they were made with
	Prefix     string // of subjects; default "carillon"
	Stream     string // of stream names; default "CARILLON"

	NATSConfig  string        // nats-server configuration file for the embedded server
	NATSAccount string        // the account of that file that holds the streams
	NATSCreds   string        // the engine's credentials, if that file is in operator mode
	NATS        string        // URL of an external NATS; no server is embedded then
	NATSOptions []nats.Option // credentials and TLS for it
	Replicas    int           // of the streams, if NATS is a cluster; streams that are there must have as many, and may have more; default 1

	// With an external NATS, the nodes over it that have the same Stream share the partitions. Each needs a name of its own.
	Weight   int           // this node's share of the partitions, relative to the other nodes' weights; default 1
	Zone     string        // what fails together, such as a rack: a partition's owner and standby are in different zones where possible
	Standbys int           // how many nodes stand by to take over each partition; default 1, -1 none
	Follow   Follow        // the partitions whose jobs this node has; default FollowAll
	Linger   time.Duration // how long it keeps the jobs of a partition that is now placed elsewhere; default 1 min

	// Bounds of the streams; 0 is the default of streams.Config, -1 none. Bounds of bytes must be 1 MiB or more.
	LogMaxBytes  int64         // the log refuses records beyond it
	OutMaxBytes  int64         // of each output stream, which drops the oldest outputs
	OutMaxAge    time.Duration // age at which an output is dropped
	PersistAsync bool          // output streams acknowledge before they write

	Retention    time.Duration // how long a completed job stays queryable; default 24 h
	CompletedMax int           // after so many more jobs of its partition have completed, a completed job is removed; default 250,000
	// CheckpointEvery, CheckpointRecords and CheckpointBytes bound what is replayed at a start: a checkpoint is taken after this
	// time, this many records, or this many bytes of the log, whichever comes first. Why not more often: a job that fires all the
	// time is written each time. Why not less often: replay runs at about 200,000 records a second, and slower when it needs
	// jobs from disk. The bytes keep the log stream, which holds the records back to the older of two checkpoints, well
	// below its bound. While a burst drains, all three are four times as much, unless the log stream becomes half full.
	CheckpointEvery   time.Duration // default 1 min
	CheckpointRecords uint64        // default 400,000
	CheckpointBytes   uint64        // default 48 MiB, or a fifth of LogMaxBytes if that is less
	// EmptyLogAfter is how long after a checkpoint, if no records come meanwhile, another checkpoint is taken, so that all of the
	// log can be cut: nats-server keeps some 400 bytes of memory for each subject in it. Why not sooner: outputs that a server
	// loses in a power failure are made again from the log, and by default nats-server syncs every two minutes.
	EmptyLogAfter time.Duration // default 150 s
	// KeepLog is how much of the past the local log keeps, beyond what the checkpoints need, so that a snapshot can be
	// restored to any time since then. While less than FreeForJobs is free, it is ignored. Default 0.
	KeepLog time.Duration

	// OutboxMax bounds the bytes of outputs that are held until they are stored for good, in all partitions that this node owns,
	// together. Above it, firing waits.
	OutboxMax int // default 512 MiB, about a second of full drain

	// MemoryForJobs is about how many bytes the jobs in memory may take. The jobs that are due last leave memory first. Jobs that
	// changed can leave it only after a checkpoint.
	MemoryForJobs int // default 1 GiB
	// HotJobs is how many jobs of each partition may be in memory however late they come due. A partition with no more jobs than that has
	// all of them in memory. Otherwise those stay that changed since the last checkpoint, and those that are due next.
	HotJobs int // default 32,768
	// LoadAhead is how long before it is due a job is brought into memory. A job with a shorter interval stays there.
	LoadAhead time.Duration // default 30 min

	FreeForJobs  uint64 // free bytes below which new jobs are refused; default DefaultFreeForJobs, 2 GiB
	FreeForTicks uint64 // free bytes below which firing waits; default 512 MiB

	// AcceptLoss names the partitions whose lost outputs or records are accepted, so that a partition that stopped because of
	// them goes on. If the log itself lost records, all partitions must be named.
	AcceptLoss map[int]bool

	// OwnProcess says that the process runs nothing but the node, which may then tune Go's memory settings (internal/memory).
	OwnProcess bool

	LogStore wal.Options // of the local log; the node sets Dir, Logger, OnSync and AllowLoss
	JobStore wal.Options // of the job table; the node sets Dir, Logger, Profile and Rest, and after a loss AllowLoss

	Logger *slog.Logger

	tryLast []string // servers of an external NATS that are tried after the others (runs.noteServer)
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		host, _ := os.Hostname() // "" on an error
		o.Name = o.nodeName(cmp.Or(host, "node"))
	}
	o.Linger = cmp.Or(o.Linger, time.Minute)
	o.Follow = cmp.Or(o.Follow, FollowAll)
	o.Listen = cmp.Or(o.Listen, "127.0.0.1:4222")
	o.HTTP = cmp.Or(o.HTTP, "127.0.0.1:8080")
	o.Prefix = cmp.Or(o.Prefix, "carillon")
	o.Stream = cmp.Or(o.Stream, "CARILLON")
	o.Retention = cmp.Or(o.Retention, 24*time.Hour)
	o.CompletedMax = cmp.Or(o.CompletedMax, 250_000)
	o.CheckpointEvery = cmp.Or(o.CheckpointEvery, time.Minute)
	o.EmptyLogAfter = cmp.Or(o.EmptyLogAfter, 150*time.Second)
	o.CheckpointRecords = cmp.Or(o.CheckpointRecords, 400_000)
	if o.CheckpointBytes == 0 {
		o.CheckpointBytes = 48 << 20
		if o.LogMaxBytes > 0 {
			o.CheckpointBytes = min(o.CheckpointBytes, uint64(o.LogMaxBytes)/5)
		}
	}
	o.OutboxMax = cmp.Or(o.OutboxMax, 512<<20)
	o.MemoryForJobs = cmp.Or(o.MemoryForJobs, 1<<30)
	o.HotJobs = cmp.Or(o.HotJobs, 1<<15)
	o.LoadAhead = cmp.Or(o.LoadAhead, 30*time.Minute)
	o.FreeForJobs = cmp.Or(o.FreeForJobs, DefaultFreeForJobs)
	o.FreeForTicks = cmp.Or(o.FreeForTicks, 512<<20)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// nodeName makes a valid node name of a host's name. Nodes that share an external NATS write beats under their names, which are one token
// then. Alone, a node may be named as its host is; other characters could make a claim that cannot be read (engine.DecodeClaim).
func (o Options) nodeName(host string) string {
	most, dots := 128, true
	if o.NATS != "" {
		most, dots = 64, false
	}
	plain := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' && dots {
			return r
		}
		return '-'
	}
	if host = strings.Map(plain, host); len(host) > most {
		host = host[:most]
	}
	return host
}

// natsDir is the directory of the embedded server, unless its configuration file names another.
func (o Options) natsDir() string { return filepath.Join(o.Data, "nats") }

// servers is how a node connects to an external NATS.
func (o Options) servers() servers.Config {
	return servers.Config{Node: o.Name, URL: o.NATS, Options: o.NATSOptions, Last: o.tryLast, Logger: o.Logger}
}

// streams is how the streams are made if they are not there.
func (o Options) streams() streams.Config {
	return streams.Config{
		Prefix: o.Prefix, StreamPrefix: o.Stream, Partitions: o.Partitions, Replicas: o.Replicas,
		LogMaxBytes: o.LogMaxBytes, OutMaxBytes: o.OutMaxBytes, OutMaxAge: o.OutMaxAge, PersistAsync: o.PersistAsync,
	}
}

// Validate returns an error that names the first invalid option; nil if there is none.
func (o Options) Validate() error {
	switch {
	case o.Data == "":
		return fmt.Errorf("node: a data directory is required")
	case o.NATS != "" && o.NATSConfig != "":
		return fmt.Errorf("node: an external NATS and a configuration of the embedded one exclude each other")
	case o.Standbys < -1 || o.Standbys > cluster.MaxStandbys:
		return fmt.Errorf("node: Standbys is %d, must be 1 to %d, or -1 for none", o.Standbys, cluster.MaxStandbys)
	case o.NATS == "" && (o.Weight > 1 || o.Zone != "" || o.Standbys > 1):
		return fmt.Errorf("node: a weight, a zone and standbys are for nodes that share an external NATS")
	case o.Follow != "" && o.Follow != FollowAll && o.Follow != FollowPlaced:
		return fmt.Errorf("node: what to follow is %q, must be %s or %s", o.Follow, FollowAll, FollowPlaced)
	case o.NATS == "" && o.Follow == FollowPlaced:
		return fmt.Errorf("node: to follow what is placed is for nodes that share an external NATS")
	case o.Name != o.nodeName(o.Name) && o.NATS != "":
		return fmt.Errorf("node: the name %q must be up to 64 letters, digits, - and _", o.Name)
	case o.Name != o.nodeName(o.Name):
		return fmt.Errorf("node: the name %q must be up to 128 letters, digits, -, _ and dots", o.Name)
	case o.NATS != "" && strings.Trim(o.NATS, " ,") == "":
		return fmt.Errorf("node: NATS is %q, which names no server", o.NATS)
	case o.Weight < 0 || o.Weight > cluster.MaxWeight:
		return fmt.Errorf("node: the weight is %d, must be 1 to %d", o.Weight, cluster.MaxWeight)
	}
	for _, b := range []struct {
		option string
		value  int64
	}{{"LogMaxBytes", o.LogMaxBytes}, {"OutMaxBytes", o.OutMaxBytes}} {
		if b.value > 0 && b.value < streams.MinStreamBytes {
			return fmt.Errorf("node: %s is %d, must be %d bytes or more, or -1 for no bound", b.option, b.value, streams.MinStreamBytes)
		}
	}
	for _, d := range []struct {
		option string
		value  time.Duration
	}{
		{"Retention", o.Retention},
		{"Linger", o.Linger},
		{"CheckpointEvery", o.CheckpointEvery},
		{"EmptyLogAfter", o.EmptyLogAfter},
		{"LoadAhead", o.LoadAhead},
		{"KeepLog", o.KeepLog},
	} {
		if d.value < 0 {
			return fmt.Errorf("node: %s is %s, must not be negative", d.option, d.value)
		}
	}
	for _, b := range []struct {
		option string
		value  int
	}{{"CompletedMax", o.CompletedMax}, {"OutboxMax", o.OutboxMax}, {"MemoryForJobs", o.MemoryForJobs}, {"HotJobs", o.HotJobs}} {
		if b.value < 0 {
			return fmt.Errorf("node: %s is %d, must not be negative", b.option, b.value)
		}
	}
	return o.streams().Validate()
}
