package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// postgresTuning is usual for a machine of this size. synchronous_commit stays on.
var postgresTuning = []string{"shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=15min", "wal_compression=on"}

const (
	riverWorkers      = 100  // as in River's own examples
	riverTunedWorkers = 1000 // of all its clients
	riverTunedPool    = 32   // connections; the default of pgxpool is the number of cores, but at least 4
)

// riverSystem is River on PostgreSQL. Every 5 s, which its configuration cannot change, River's leader makes those jobs available that are
// due within the next 5 s. Workers fetch them once they are due, by notification or by polling. Tuned, the fetch cooldown and the poll
// interval are 1 ms, the least that River accepts; River adds up to 10 ms of jitter.
func riverSystem(tuned bool) system {
	s := system{
		name: "river", tuned: tuned, durability: "PostgreSQL's fsync and synchronous_commit on",
		settings: []string{"100 workers"},
		server:   postgresServer,
		start: func(ctx context.Context, s *workspace) (string, error) {
			url, err := startPostgres(ctx, s, tuned)
			if err != nil {
				return "", err
			}
			return url, migrate(ctx, url)
		},
		open: func(ctx context.Context, url string) (client, error) { return openRiver(ctx, url, tuned) },
		work: func(ctx context.Context, url string, handle handler) error { return workRiver(ctx, url, tuned, handle) },
	}
	if tuned {
		s.settings = slices.Concat([]string{
			fmt.Sprintf("%d clients, %d workers together", tunedInstances, riverTunedWorkers), "fetch cooldown and poll 1ms", fmt.Sprintf("%d connections", riverTunedPool),
		}, postgresTuning)
	}
	return s
}

// startPostgres creates a database cluster and starts its server. PostgreSQL refuses to run as root; if this process is root's, the server
// runs as the user postgres, which PostgreSQL's package creates.
func startPostgres(ctx context.Context, s *workspace, tuned bool) (url string, err error) {
	server, err := postgresServer()
	if err != nil {
		return "", err
	}
	dir, err := s.mkdir("postgres")
	if err != nil {
		return "", err
	}
	attr, err := s.asUser("postgres", dir)
	if err != nil {
		return "", err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(filepath.Dir(server), "initdb"), "-D", dir, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
	initdb.SysProcAttr, initdb.Dir = attr, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w; it said:\n%s", err, out)
	}
	listen, err := freeAddress()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	args := []string{
		"-D", dir, "-c", "listen_addresses=" + host, "-c", "port=" + port, "-c", "unix_socket_directories=",
		"-c", "fsync=on", "-c", "synchronous_commit=on",
	}
	if tuned {
		for _, setting := range postgresTuning {
			args = append(args, "-c", setting)
		}
	}
	cmd := exec.Command(server, args...)
	cmd.SysProcAttr = attr
	url = fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", listen)
	// SIGINT asks for a fast shutdown: clients are disconnected, and the database is closed properly.
	return url, s.start(ctx, "postgres", cmd, syscall.SIGINT, func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	})
}

// postgresServer finds the newest PostgreSQL server. Debian installs servers, each with its initdb, in folders that are not in PATH.
func postgresServer() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		path, err := exec.LookPath("postgres")
		if err != nil {
			return "", fmt.Errorf("no PostgreSQL server: %w; make peers installs it", err)
		}
		return path, nil
	}
	major := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4]) // 0 if it is no number, so that any version wins
		return n
	}
	return slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) }), nil
}

// asUser makes a process run as another user, who becomes the owner of its directory. It does so only if this process is root's.
func (s *workspace) asUser(name, dir string) (*syscall.SysProcAttr, error) {
	if syscall.Geteuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	if err := syscall.Chown(dir, uid, gid); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func newPool(ctx context.Context, url string, tuned bool) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if tuned {
		config.MaxConns = riverTunedPool
	}
	return pgxpool.NewWithConfig(ctx, config)
}

type riverArgs struct {
	Payload json.RawMessage `json:"payload"`
}

func (riverArgs) Kind() string { return "bench" }

type riverClient struct {
	pool *pgxpool.Pool
	*river.Client[pgx.Tx]
}

func openRiver(ctx context.Context, url string, tuned bool) (client, error) {
	pool, err := newPool(ctx, url, tuned)
	if err != nil {
		return nil, err
	}
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &riverClient{pool, c}, nil
}

func (c *riverClient) create(ctx context.Context, j job) error {
	_, err := c.Insert(ctx, riverArgs{j.payload}, &river.InsertOpts{ScheduledAt: j.due})
	return err
}

func (c *riverClient) createAll(ctx context.Context, jobs []job) error {
	for some := range slices.Chunk(jobs, 5000) {
		params := make([]river.InsertManyParams, len(some))
		for i, j := range some {
			params[i] = river.InsertManyParams{Args: riverArgs{j.payload}, InsertOpts: &river.InsertOpts{ScheduledAt: j.due}}
		}
		if _, err := c.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

func (c *riverClient) version(ctx context.Context) (v string, err error) {
	err = c.pool.QueryRow(ctx, "SHOW server_version").Scan(&v)
	return library("github.com/riverqueue/river") + ", PostgreSQL " + v, err
}

func (c *riverClient) close() { c.pool.Close() }

func workRiver(ctx context.Context, url string, tuned bool, handle handler) error {
	pool, err := newPool(ctx, url, tuned)
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, j *river.Job[riverArgs]) error {
		handle(j.Args.Payload, j.Attempt > 1, time.Time{})
		return nil
	}))
	config, clients, most := river.Config{Workers: workers}, 1, riverWorkers
	if tuned {
		clients, most = tunedInstances, riverTunedWorkers/tunedInstances
		config.FetchCooldown, config.FetchPollInterval = river.FetchCooldownMin, river.FetchPollIntervalMin
	}
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}}
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var started []*river.Client[pgx.Tx]
	for range clients {
		c, err := river.NewClient(riverpgxv5.New(pool), &config)
		if err == nil {
			err = c.Start(stop)
		}
		if err != nil {
			return err
		}
		started = append(started, c)
	}
	<-ctx.Done()
	ending, cancel := context.WithTimeout(stop, 10*time.Second)
	defer cancel()
	for _, c := range started {
		if err := c.Stop(ending); err != nil {
			return err
		}
	}
	return nil
}
