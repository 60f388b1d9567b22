package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// Where a snapshot is saved: a directory, or a bucket.

// archive opens the directory or bucket that a request names.
func (n *Node) archive(ctx context.Context, r *carillon.SnapshotRequest) (t archive.Target, release func(), err error) {
	if r.Dir != "" {
		if err := n.checkArchiveDir(r.Dir); err != nil {
			return nil, nil, err
		}
		return archive.OpenDir(nil, filepath.Clean(r.Dir)), func() {}, nil
	}
	b, release, err := n.bucket(ctx, jetstream.ObjectStoreConfig{Bucket: r.Bucket})
	if err != nil {
		return nil, nil, err
	}
	if err := keepsObjects(ctx, b); err != nil {
		release()
		return nil, nil, err
	}
	return b, release, nil
}

// keepsObjects refuses a bucket that drops its objects after some time, because a snapshot uses blocks that older snapshots wrote.
func keepsObjects(ctx context.Context, b *archive.Bucket) error {
	ttl, err := b.TTL(ctx)
	if err == nil && ttl > 0 {
		err = &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "bucket",
			Message: fmt.Sprintf("%s forgets objects after %s, and later snapshots are made of them, too: it needs one without", b, ttl),
		}
	}
	return err
}

// codeMaxBytesRequired is JetStream's error code for an account in which every stream must have a bound of bytes. The engine sets none,
// because it cannot know how large a bucket will become, and JetStream reserves the bound from the account's limit at once.
const codeMaxBytesRequired = 10113

// bucket opens a bucket, and makes it if there is none. It uses a connection of its own, because on the engine's connection triggers would
// wait behind it.
func (n *Node) bucket(ctx context.Context, o jetstream.ObjectStoreConfig) (b *archive.Bucket, release func(), err error) {
	var nc *nats.Conn
	if n.server != nil {
		nc, err = n.server.Connect(nats.Name("carillon " + n.o.Name + " snapshot"))
	} else {
		nc, err = n.servers.Config.Connect(" snapshot")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("connect for the bucket: %w", err)
	}
	js, err := archive.JetStream(nc, 0)
	var store jetstream.ObjectStore
	if err == nil {
		store, err = n.objectStore(ctx, js, o)
	}
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("bucket %s: %w", o.Bucket, err)
	}
	return archive.NewBucket(o.Bucket, js, store), nc.Close, nil
}

// objectStore opens the object store of a bucket, and makes it if there is none.
func (n *Node) objectStore(ctx context.Context, js jetstream.JetStream, o jetstream.ObjectStoreConfig) (jetstream.ObjectStore, error) {
	store, err := js.ObjectStore(ctx, o.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return store, err
	}
	o.Replicas = n.streams.Log.Replicas()
	store, err = js.CreateObjectStore(ctx, o)
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == codeMaxBytesRequired {
		err = fmt.Errorf("%w (max_bytes_required); make the bucket before, as large as it may become: "+
			"nats object add %s --max-bucket-size SIZE --replicas %d", err, o.Bucket, o.Replicas)
		if o.TTL > 0 {
			err = fmt.Errorf("%w --ttl %s", err, o.TTL)
		}
	}
	return store, err
}

// checkArchiveDir refuses a directory that is not an archive, or not a place for one: any client may name one, and this process writes
// there with its own rights.
func (n *Node) checkArchiveDir(dir string) error {
	refuse := func(format string, args ...any) error {
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "dir", Message: fmt.Sprintf(format, args...)}
	}
	if !filepath.IsAbs(dir) {
		return refuse("is no absolute path here: %q", dir)
	}
	inside, err := liesIn(dir, n.o.Data)
	if err != nil {
		return err
	}
	if inside {
		return refuse("lies in the service's data directory")
	}
	if err := archive.OpenDir(nil, dir).Check(); err != nil {
		return refuse("%v", err)
	}
	return nil
}
