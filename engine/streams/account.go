package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// apiLevel is the API level of nats-server 2.12. The leader of JetStream reports it, which may be another server than the one that
// the engine is connected to.
const apiLevel = 2

// account is JetStream's answer about the engine's account.
type account struct {
	tier
	Tiers map[string]tier `json:"tiers"` // of an account whose limits depend on the replicas: "R1", "R3"
	API   struct {
		Level int `json:"level"`
	} `json:"api"`
}

type tier struct {
	Store    int64 `json:"storage"`
	Reserved int64 `json:"reserved_storage"`
	Streams  int   `json:"streams"`
	Limits   struct {
		MaxStore       int64 `json:"max_storage"`
		MaxStreams     int   `json:"max_streams"`
		MaxStreamBytes int64 `json:"storage_max_stream_bytes"`
	} `json:"limits"`
}

// of returns the limits for streams of so many replicas.
func (a *account) of(replicas int) tier {
	if t, ok := a.Tiers[fmt.Sprintf("R%d", replicas)]; ok {
		return t
	}
	return a.tier
}

// ErrNoJetStream: nats-server has no JetStream, or none for the engine's account.
var ErrNoJetStream = errors.New("streams: JetStream is not enabled")

// checkJetStream checks that JetStream is there and new enough.
func checkJetStream(ctx context.Context, nc *nats.Conn) (a account, err error) {
	err = (&stream{nc: nc}).request(ctx, "INFO", nil, &a)
	var api *APIError
	switch {
	case errors.As(err, &api) && api.ErrCode == codeNotEnabledForAccount:
		return a, fmt.Errorf("%w for the account of the engine's user: give that account jetstream: enabled", ErrNoJetStream)
	case errors.As(err, &api) && api.ErrCode == codeNotEnabled:
		return a, fmt.Errorf("%w on nats-server %s", ErrNoJetStream, nc.ConnectedServerName())
	case errors.Is(err, ErrDisconnected):
		// In a cluster other servers may have JetStream, and be away at the moment.
		if on, _ := nc.ConnectedServerJetStream(); !on && nc.IsConnected() {
			if nc.ConnectedClusterName() == "" {
				return a, fmt.Errorf("%w on nats-server %s, which stands alone", ErrNoJetStream, nc.ConnectedServerName())
			}
			err = fmt.Errorf("%w by way of nats-server %s, which has none itself (a leaf node has to name the hub's domain: default_js_domain)",
				err, nc.ConnectedServerName())
		}
	case err == nil && a.API.Level < apiLevel:
		return a, fmt.Errorf("streams: the nats-server that leads JetStream has API level %d, must be %d or more: %s",
			a.API.Level, apiLevel, needsVersion)
	}
	return a, refusal(nc, err)
}

// createError says why a stream could not be made, with the limits that matter.
func (c Config) createError(ctx context.Context, nc *nats.Conn, want jetstream.StreamConfig, err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return fmt.Errorf("streams: %s: %w", want.Name, refusal(nc, err))
	}
	err = fmt.Errorf("streams: %s, with %d replicas and %s, cannot be made: %w", want.Name, want.Replicas, mib(want.MaxBytes), err)
	switch int(api.ErrorCode) {
	case codeReplicasAlone:
		return fmt.Errorf("%w: nats-server %s stands alone", err, nc.ConnectedServerName())
	case codeSubjectsOverlap:
		return fmt.Errorf("%w: another stream has some of %q", err, want.Subjects)
	case codeAccountResources, codeInsufficient, codeStorageResources, codeNoPeers, codeMaxStreams, codeMaxStreamBytes:
	default:
		return err
	}
	a, asked := checkJetStream(ctx, nc)
	if asked != nil {
		return err
	}
	count := 1 + c.Partitions
	if c.Bucket > 0 {
		count++
	}
	err = fmt.Errorf("%w; all streams of the engine, %d of them, need %s of storage", err, count, c.storage())
	t := a.of(c.Replicas)
	switch int(api.ErrorCode) {
	case codeMaxStreams:
		return fmt.Errorf("%w; the account may have %d streams and has %d", err, t.Limits.MaxStreams, t.Streams)
	case codeMaxStreamBytes:
		return fmt.Errorf("%w; the account allows a stream of %s", err, mib(t.Limits.MaxStreamBytes))
	case codeNoPeers:
		return fmt.Errorf("%w; each replica needs a server of its own that has the room (max_file_store)", err)
	}
	if t.Limits.MaxStore >= 0 {
		return fmt.Errorf("%w; the account may use %s, and %s of that are taken", err, mib(t.Limits.MaxStore), mib(max(t.Reserved, t.Store)))
	}
	return fmt.Errorf("%w; the servers' max_file_store leaves too little (an embedded server's is the size of its disk, unless it is configured)", err)
}

// storage is how much all streams take when they are full, over all replicas.
func (c Config) storage() string {
	log, out := c.logConfig().MaxBytes, c.outConfig(0).MaxBytes
	if log < 0 || out < 0 {
		return "without bound"
	}
	return fmt.Sprintf("%d × %s", c.Replicas, mib(log+int64(c.Partitions)*out+c.Bucket))
}

func mib(bytes int64) string {
	switch {
	case bytes < 0:
		return "no bound of bytes"
	case bytes < 1<<20:
		return fmt.Sprintf("%d bytes", bytes)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
