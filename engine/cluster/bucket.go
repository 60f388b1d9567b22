package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BucketMaxBytes is room for a thousand nodes that each report 1,024 partitions, and a bound for whatever else writes here.
const BucketMaxBytes = 64 << 20

// In a cluster of servers, a bucket that was just made, perhaps by another node that starts at the same time, has a leader of its
// own. The server that answers whether the bucket exists may hear of it later, so openBucket tries again.
const (
	openRetry = 50 * time.Millisecond
	openTries = 200
)

// openBucket makes the bucket, or checks the existing one, and says how many replicas it has.
func openBucket(ctx context.Context, js jetstream.JetStream, o Options) (kv jetstream.KeyValue, replicas int, err error) {
	for try := 1; ; try++ {
		kv, replicas, err = openBucketOnce(ctx, js, o)
		unseen := errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)
		if !unseen || try == openTries {
			return kv, replicas, err
		}
		if err := sleep(ctx, openRetry); err != nil {
			return nil, 0, err
		}
	}
}

func openBucketOnce(ctx context.Context, js jetstream.JetStream, o Options) (jetstream.KeyValue, int, error) {
	kv, err := js.KeyValue(ctx, o.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: o.Bucket, Description: "Carillon: who is there, and who serves what",
			History: 1, Storage: jetstream.FileStorage, Replicas: o.MakeReplicas, MaxBytes: BucketMaxBytes,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // another node was faster, and made it with other options
			kv, err = js.KeyValue(ctx, o.Bucket)
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: bucket %s: %w", o.Bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: bucket %s: %w", o.Bucket, err)
	}
	return kv, status.Config().Replicas, checkBucket(status.Config(), o)
}

func checkBucket(has jetstream.KeyValueConfig, o Options) error {
	if wrong := bucketMismatch(has, o); wrong != "" {
		return fmt.Errorf("%w: %s %s", ErrBucket, o.Bucket, wrong)
	}
	return nil
}

// bucketMismatch says what is wrong with the bucket; "" if nothing is.
func bucketMismatch(has jetstream.KeyValueConfig, o Options) string {
	switch {
	case has.Replicas < o.Replicas:
		return fmt.Sprintf("has %d replicas, %d are asked for; change it with: nats stream edit KV_%s --replicas %d", has.Replicas, o.Replicas, o.Bucket, o.Replicas)
	case has.TTL != 0:
		return fmt.Sprintf("forgets keys after %s; the placement must stay", has.TTL)
	case has.Storage != jetstream.FileStorage:
		return "is in memory; the placement must survive a restart of the servers"
	}
	return ""
}

// BucketMismatch says why Join would refuse the bucket now, because somebody edited it; "" if it would not. Errors: what JetStream answers.
func (m *Member) BucketMismatch(ctx context.Context) (string, error) {
	status, err := m.kv.Status(ctx)
	if err != nil {
		return "", err
	}
	return bucketMismatch(status.Config(), m.o), nil
}
