package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// The headers of a message schedule (ADR-51 of NATS).
const (
	scheduleHeader = "Nats-Schedule"
	targetHeader   = "Nats-Schedule-Target"
)

// natsSystem is NATS's own message schedules. A schedule is a message on its own subject; when it is due, the server publishes its payload
// to the target subject, in the same stream. The server leaves at least 250 ms between two passes over its schedules (resetTimer in its
// scheduler.go), and no setting changes that. Tuning changes how many streams share the work and how much a consumer fetches at once.
func natsSystem(tuned bool) system {
	s := system{
		name: "nats-schedules", tuned: tuned,
		durability: "page cache, fsync every 2 min (JetStream's default)",
		start: func(ctx context.Context, s *workspace) (string, error) {
			listen, err := freeAddress()
			if err != nil {
				return "", err
			}
			url := "nats://" + listen
			cmd := exec.Command(s.self, "nats-server", s.path("nats"), listen)
			return url, s.start(ctx, "nats", cmd, syscall.SIGTERM, func(ctx context.Context) error {
				c, err := openNATS(ctx, url, streamsOf(tuned))
				if err != nil {
					return err
				}
				defer c.close()
				return c.createStreams(ctx)
			})
		},
		open: func(ctx context.Context, url string) (client, error) { return openNATS(ctx, url, streamsOf(tuned)) },
		work: func(ctx context.Context, url string, handle handler) error {
			return workNATS(ctx, url, tuned, handle)
		},
	}
	if tuned {
		s.settings = []string{"8 streams", "max_ack_pending 10000", "pull 5000"}
	}
	return s
}

func streamsOf(tuned bool) int {
	if tuned {
		return 8
	}
	return 1
}

type natsClient struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	streams int
}

func openNATS(_ context.Context, url string, streams int) (*natsClient, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &natsClient{nc, js, streams}, nil
}

func streamName(i int) string { return "SCHEDULES_" + strconv.Itoa(i) }

func (c *natsClient) createStreams(ctx context.Context) error {
	for i := range c.streams {
		_, err := c.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: streamName(i), Subjects: []string{fmt.Sprintf("schedule.%d.>", i), fmt.Sprintf("fired.%d", i)},
			Storage: jetstream.FileStorage, AllowMsgSchedules: true,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *natsClient) message(j job) *nats.Msg {
	stream := j.number % c.streams
	if stream < 0 { // the probe
		stream = 0
	}
	m := nats.NewMsg(fmt.Sprintf("schedule.%d.%s", stream, j.id()))
	m.Header.Set(scheduleHeader, "@at "+j.due.UTC().Format(carillon.TimeFormat))
	m.Header.Set(targetHeader, fmt.Sprintf("fired.%d", stream))
	m.Data = j.payload
	return m
}

func (c *natsClient) create(ctx context.Context, j job) error {
	_, err := c.js.PublishMsg(ctx, c.message(j))
	return err
}

func (c *natsClient) createAll(ctx context.Context, jobs []job) error {
	futures := make([]jetstream.PubAckFuture, 0, len(jobs))
	for _, j := range jobs {
		f, err := c.js.PublishMsgAsync(c.message(j), jetstream.WithStallWait(time.Minute)) // a busy disk is no error
		if err != nil {
			return err
		}
		futures = append(futures, f)
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *natsClient) version(context.Context) (string, error) {
	return "nats-server " + c.nc.ConnectedServerVersion(), nil
}

func (c *natsClient) close() { c.nc.Close() }

func workNATS(ctx context.Context, url string, tuned bool, handle handler) (err error) {
	c, err := openNATS(ctx, url, streamsOf(tuned))
	if err != nil {
		return err
	}
	defer c.close()
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default: // the first error is enough
		}
	}
	for i := range c.streams {
		config := jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: fmt.Sprintf("fired.%d", i)}
		options := []jetstream.PullConsumeOpt{jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { fail(err) })}
		if tuned {
			config.MaxAckPending = 10_000
			options = append(options, jetstream.PullMaxMessages(5_000))
		}
		consumer, err := c.js.CreateConsumer(ctx, streamName(i), config)
		if err != nil {
			return err
		}
		consuming, err := consumer.Consume(func(m jetstream.Msg) {
			meta, err := m.Metadata()
			if err == nil {
				handle(m.Data(), meta.NumDelivered > 1, meta.Timestamp)
				err = m.Ack()
			}
			if err != nil {
				fail(err)
			}
		}, options...)
		if err != nil {
			return err
		}
		defer consuming.Stop()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// serveNATS is the process of NATS as a peer: a nats-server with JetStream and default settings.
func serveNATS(ctx context.Context, dir, listen string, log io.Writer) error {
	host, port, _ := strings.Cut(listen, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("%q is no host:port", listen)
	}
	s, err := server.NewServer(&server.Options{Host: host, Port: n, JetStream: true, StoreDir: dir, NoSigs: true})
	if err != nil {
		return err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("nats-server is not ready")
	}
	fmt.Fprintln(log, "nats-server", server.VERSION, "ready on", s.ClientURL())
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
