package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A system is one scheduler with its defaults or tuned.
type system struct {
	name       string
	tuned      bool
	durability string   // what is on disk when a create is answered
	settings   []string // that differ from the defaults of the library and the server

	// server finds the server's program. It is nil if the server is this binary or Carillon's.
	server func() (path string, err error)
	// start starts the service without any data, waits until it is ready, and returns its address.
	start func(ctx context.Context, s *workspace) (address string, err error)
	// open connects a client that creates jobs.
	open func(ctx context.Context, address string) (client, error)
	// work runs the library's own worker until ctx ends. The worker calls handle for every job that fires.
	work func(ctx context.Context, address string, handle handler) error
}

// handler handles a fired job. again says that this is not its first delivery. stored is when the service stored the message that
// workers take; it is zero if the service does not tell.
type handler func(payload []byte, again bool, stored time.Time)

// A client creates one-shot jobs.
type client interface {
	// create creates one job and waits for the answer. It may be called concurrently.
	create(ctx context.Context, j job) error
	// createAll creates jobs in the library's fastest way.
	createAll(ctx context.Context, jobs []job) error
	// version returns the versions of the service and of its library, where that has its own.
	version(ctx context.Context) (string, error)
	close()
}

// job is a one-shot. Its number is in its payload.
type job struct {
	number  int
	due     time.Time
	payload []byte
}

// tunedInstances is how many River clients or asynq servers a tuned worker runs in its process. Within each of them a single loop fetches
// the jobs, as in a consumer of NATS, so several of them fetch faster.
const tunedInstances = 4

const digits = 10 // of the job number in a payload

func newJob(number int, due time.Time, payloadBytes int) job {
	payload := fmt.Appendf(make([]byte, 0, payloadBytes), `"%0*d`, digits, number)
	for len(payload) < payloadBytes-1 {
		payload = append(payload, 'x')
	}
	return job{number, due, append(payload, '"')}
}

// numberOf returns the job number in a payload.
func numberOf(payload []byte) (int, error) {
	if len(payload) < digits+2 {
		return 0, fmt.Errorf("a payload of %d bytes has no number", len(payload))
	}
	return strconv.Atoi(string(payload[1 : 1+digits]))
}

// id is the job's id, for systems that have ids.
func (j job) id() string { return "job" + strconv.Itoa(j.number) }

var systems = []system{
	carillonSystem(false), carillonSystem(true),
	natsSystem(false), natsSystem(true),
	riverSystem(false), riverSystem(true),
	asynqSystem(false, "everysec"), asynqSystem(true, "everysec"), asynqSystem(true, "always"),
}

// key is the name of the system, with "-tuned" if it is tuned.
func (s *system) key() string { return keyOf(s.name, s.tuned) }

func keyOf(name string, tuned bool) string {
	if tuned {
		return name + "-tuned"
	}
	return name
}

func find(key string) (*system, error) {
	i := slices.IndexFunc(systems, func(s system) bool { return s.key() == key })
	if i < 0 {
		return nil, fmt.Errorf("%q is no system; there are %s", key, strings.Join(keys(), ", "))
	}
	return &systems[i], nil
}

func keys() (names []string) {
	for i := range systems {
		names = append(names, systems[i].key())
	}
	return names
}

// library returns the name and version of a module that is part of this binary.
func library(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == path {
				return name + " " + d.Version
			}
		}
	}
	return name
}
