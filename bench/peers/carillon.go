package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

const topic = "peers"

// carillonTunedWorkers is how many handlers the tuned worker runs at once; the default is 16.
const carillonTunedWorkers = 256

// carillonSystem is `carillon serve` with its defaults, with the Go client and worker. Tuning changes the worker only.
func carillonSystem(tuned bool) system {
	s := system{
		name: "carillon", tuned: tuned, durability: "fsync of the local log before the answer",
		start: func(ctx context.Context, s *workspace) (string, error) {
			listen, err := freeAddress()
			if err != nil {
				return "", err
			}
			url := "nats://" + listen
			cmd := exec.Command(s.carillon, "serve", "--data", s.path("carillon"), "--listen", listen, "--http", "127.0.0.1:0")
			return url, s.start(ctx, "carillon", cmd, syscall.SIGTERM, func(ctx context.Context) error {
				c, err := openCarillon(ctx, url)
				if err != nil {
					return err
				}
				defer c.close()
				_, err = c.version(ctx)
				return err
			})
		},
		open: openCarillon,
		work: func(ctx context.Context, url string, handle handler) error {
			nc, err := nats.Connect(url)
			if err != nil {
				return err
			}
			defer nc.Close()
			o := carillon.WorkerOptions{Topic: topic, Name: topic}
			if tuned {
				o.Concurrency = carillonTunedWorkers
			}
			return carillon.Connect(nc).Work(ctx, o, func(_ context.Context, t *carillon.Trigger) error {
				handle(t.Payload, t.Attempt > 1, t.Stored)
				return nil
			})
		},
	}
	if tuned {
		s.settings = []string{fmt.Sprintf("%d handlers", carillonTunedWorkers)}
	}
	return s
}

type carillonClient struct {
	nc *nats.Conn
	*carillon.Client
}

func openCarillon(_ context.Context, url string) (client, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	return &carillonClient{nc, carillon.Connect(nc)}, nil
}

func carillonJob(j job) carillon.Job {
	return carillon.Job{ID: j.id(), Schedule: "@at " + j.due.UTC().Format(carillon.TimeFormat), Topic: topic, Payload: j.payload}
}

func (c *carillonClient) create(ctx context.Context, j job) error {
	_, err := c.Put(ctx, carillonJob(j))
	return err
}

func (c *carillonClient) createAll(ctx context.Context, jobs []job) error {
	all := func(yield func(carillon.Job) bool) {
		for j := range slices.Values(jobs) {
			if !yield(carillonJob(j)) {
				return
			}
		}
	}
	var failed error
	err := c.PutAll(ctx, all, concurrentCreates, func(_ carillon.Job, _ carillon.JobReply, err error) { failed = errors.Join(failed, err) })
	return errors.Join(err, failed)
}

func (c *carillonClient) version(ctx context.Context) (string, error) {
	r, err := c.Status(ctx)
	return r.Versions.Carillon + ", embedded nats-server " + c.nc.ConnectedServerVersion(), err
}

func (c *carillonClient) close() { c.nc.Close() }
