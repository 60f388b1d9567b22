package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

const asynqTunedWorkers = 100 // of all servers together

// asynqSystem is asynq on Redis with an append-only file; fsync is Redis's appendfsync. asynq truncates the time of a task to whole seconds
// (processAt.Unix() in its rdb.go), so tasks can fire early. A forwarder moves due tasks to the queue, by default every 5 s. A worker that
// found the queue empty looks again after a second. Tuned, both intervals are 1 ms.
func asynqSystem(tuned bool, fsync string) system {
	s := system{
		name: "asynq", tuned: tuned, durability: "appendonly, appendfsync " + fsync,
		server: redisServer,
		start:  func(ctx context.Context, s *workspace) (string, error) { return startRedis(ctx, s, fsync) },
		open:   func(_ context.Context, address string) (client, error) { return openAsynq(address, tuned), nil },
		work: func(ctx context.Context, address string, handle handler) error {
			return workAsynq(ctx, address, tuned, handle)
		},
	}
	if tuned {
		s.settings = []string{
			fmt.Sprintf("%d servers, %d workers and connections together", tunedInstances, asynqTunedWorkers), "delayed task and task check 1ms",
		}
	}
	if fsync == "always" {
		s.name = "asynq-always"
	}
	return s
}

func redisServer() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("no Redis server: %w; make peers installs it", err)
	}
	return path, nil
}

func startRedis(ctx context.Context, s *workspace, fsync string) (string, error) {
	bin, err := redisServer()
	if err != nil {
		return "", err
	}
	dir, err := s.mkdir("redis")
	if err != nil {
		return "", err
	}
	listen, err := freeAddress()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, "--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", fsync)
	return listen, s.start(ctx, "redis", cmd, syscall.SIGTERM, func(ctx context.Context) error {
		c := redis.NewClient(&redis.Options{Addr: listen})
		defer c.Close()
		return c.Ping(ctx).Err()
	})
}

func asynqOptions(address string, tuned bool) asynq.RedisClientOpt {
	o := asynq.RedisClientOpt{Addr: address}
	if tuned {
		o.PoolSize = asynqTunedWorkers
	}
	return o
}

type asynqClient struct {
	*asynq.Client
	redis *redis.Client
}

func openAsynq(address string, tuned bool) *asynqClient {
	return &asynqClient{asynq.NewClient(asynqOptions(address, tuned)), redis.NewClient(&redis.Options{Addr: address})}
}

func (c *asynqClient) create(ctx context.Context, j job) error {
	_, err := c.EnqueueContext(ctx, asynq.NewTask("bench", j.payload), asynq.ProcessAt(j.due))
	return err
}

// createAll calls create from many goroutines, because asynq has no bulk call.
func (c *asynqClient) createAll(ctx context.Context, jobs []job) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrentCreates)
	for _, j := range jobs {
		g.Go(func() error { return c.create(ctx, j) })
	}
	return g.Wait()
}

func (c *asynqClient) version(ctx context.Context) (string, error) {
	info, err := c.redis.Info(ctx, "server").Result()
	_, rest, _ := strings.Cut(info, "redis_version:")
	v, _, _ := strings.Cut(rest, "\r\n")
	return library("github.com/hibiken/asynq") + ", Redis " + v, err
}

func (c *asynqClient) close() {
	c.Client.Close() // no call is in progress
	c.redis.Close()
}

func workAsynq(ctx context.Context, address string, tuned bool, handle handler) error {
	config, options, servers := asynq.Config{LogLevel: asynq.WarnLevel}, asynqOptions(address, tuned), 1
	if tuned {
		servers = tunedInstances
		config.Concurrency, options.PoolSize = asynqTunedWorkers/servers, asynqTunedWorkers/servers
		config.DelayedTaskCheckInterval, config.TaskCheckInterval = time.Millisecond, time.Millisecond
	}
	for range servers {
		s := asynq.NewServer(options, config)
		err := s.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			retried, _ := asynq.GetRetryCount(ctx)
			handle(t.Payload(), retried > 0, time.Time{})
			return nil
		}))
		if err != nil {
			return err
		}
		defer s.Shutdown()
	}
	<-ctx.Done()
	return nil
}
