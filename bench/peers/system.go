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

// A system is one scheduler in one setting.
type system struct {
	name       string
	tuned      bool
	durability string   // what holds once a create has been answered
	settings   []string // what differs from the library's and the server's own defaults

	// server finds the server's program; nil if it needs none besides this binary and Carillon's.
	server func() (path string, err error)
	// start starts the service in the site, empty and ready, and returns its address.
	start func(ctx context.Context, s *site) (address string, err error)
	// open connects the side that creates jobs.
	open func(ctx context.Context, address string) (client, error)
	// work hands every job that fires to handle, with the library's own worker, until ctx ends.
	work func(ctx context.Context, address string, handle handler) error
}

// handler takes a fired job. again says that it is not the first delivery; stored is when the service put it
// where workers take it from, zero where it does not say.
type handler func(payload []byte, again bool, stored time.Time)

// A client creates one-shots.
type client interface {
	// create returns once the service has answered for the job; any number of goroutines may call it.
	create(ctx context.Context, j job) error
	// createAll creates jobs the library's fastest way.
	createAll(ctx context.Context, jobs []job) error
	// version is the service's own.
	version(ctx context.Context) (string, error)
	close()
}

// job is a one-shot. Its number is in its payload.
type job struct {
	number  int
	due     time.Time
	payload []byte
}

// tunedInstances is how many of a library's own servers or clients a tuned worker runs in its process: within one, a single loop
// takes the jobs. They share the work as the streams of NATS do.
const tunedInstances = 4

const digits = 10 // of the number in a payload

func newJob(number int, due time.Time, payloadBytes int) job {
	payload := fmt.Appendf(make([]byte, 0, payloadBytes), `"%0*d`, digits, number)
	for len(payload) < payloadBytes-1 {
		payload = append(payload, 'x')
	}
	return job{number, due, append(payload, '"')}
}

// numberOf reads the number out of a payload.
func numberOf(payload []byte) (int, error) {
	if len(payload) < digits+2 {
		return 0, fmt.Errorf("a payload of %d bytes has no number", len(payload))
	}
	return strconv.Atoi(string(payload[1 : 1+digits]))
}

// id is the job's name where a system wants one.
func (j job) id() string { return "job" + strconv.Itoa(j.number) }

var systems = []system{
	carillonSystem(false), carillonSystem(true),
	natsSystem(false), natsSystem(true),
	riverSystem(false), riverSystem(true),
	asynqSystem(false, "everysec"), asynqSystem(true, "everysec"), asynqSystem(true, "always"),
}

// key names the system and its setting.
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

// library is "name version" of a module that this binary was built with.
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
