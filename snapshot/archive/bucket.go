package archive

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Bucket is a JetStream Object Store as a Target. A write or a delete that is interrupted may leave chunks in the bucket's
// stream that no object names, of one block at most; JetStream has no way to find them.
type Bucket struct {
	name          string
	folder        string // with a slash at its end, or ""
	js            jetstream.JetStream
	store         jetstream.ObjectStore
	lockTTL       time.Duration // of a lock that is not renewed
	renewInterval time.Duration // between two renewals
	lockPatience  time.Duration // how long a caller waits for one that came later to give up
}

// lockTTL is a minute so that a save that was suspended notices it before another one takes over. Not less, because a server
// that changes its leader does not answer for seconds.
const (
	lockTTL       = time.Minute
	renewInterval = 10 * time.Second
	lockPatience  = time.Second
	lockLook      = 10 * time.Millisecond // between two looks at the locks
)

const locksFolder = "locks"

// objectTime is how long an object of a few MiB may take on a slow link.
const objectTime = time.Minute

// JetStream returns a connection's JetStream as a Bucket needs it: with a longer default timeout, because by that, five seconds
// by default, it also waits for a whole object. timeout is the least that it gets.
func JetStream(nc *nats.Conn, timeout time.Duration) (jetstream.JetStream, error) {
	return jetstream.New(nc, jetstream.WithDefaultTimeout(max(timeout, objectTime)))
}

// NewBucket returns a bucket as a Target. js comes from JetStream, and store is the object store of that name.
func NewBucket(name string, js jetstream.JetStream, store jetstream.ObjectStore) *Bucket {
	return &Bucket{name: name, js: js, store: store, lockTTL: lockTTL, renewInterval: renewInterval, lockPatience: lockPatience}
}

// TTL is how long the bucket keeps an object; 0: for ever. Errors: what the server said.
func (b *Bucket) TTL(ctx context.Context) (time.Duration, error) {
	s, err := b.store.Status(ctx)
	if err != nil {
		return 0, err
	}
	return s.TTL(), nil
}

// In returns a folder of a bucket as a Target of its own, with locks of its own.
func (b *Bucket) In(folder string) *Bucket {
	in := *b
	in.folder += folder + "/"
	return &in
}

func (b *Bucket) String() string {
	if b.folder != "" {
		return "bucket " + b.Path("")
	}
	return "bucket " + b.name
}

// Path is the name of the bucket, a colon, and that of the object.
func (b *Bucket) Path(name string) string { return b.name + ":" + b.folder + name }

// Put stores an object. The object store sends its metadata right behind its chunks: in a bucket that is full, these may be refused and the
// metadata, which are small, be stored. Then Put removes them, because the object would have a name and no bytes.
func (b *Bucket) Put(ctx context.Context, name string, data []byte) error {
	_, err := b.store.PutBytes(ctx, b.folder+name, data)
	if err == nil {
		return nil
	}
	if k, lerr := b.last(ctx, name); lerr == nil && k.exists() {
		if there, lerr := b.chunksThere(ctx, b.chunks(k.info.NUID)); lerr == nil && !b.whole(&k, there) {
			_ = b.purge(ctx, name, k) // else List shows that it is not whole
		}
	}
	return fmt.Errorf("write %s: %w", b.Path(name), err)
}

// chunksThere counts the chunks that the bucket has, by subject. of is the subject of an object's chunks, or that of all.
func (b *Bucket) chunksThere(ctx context.Context, of string) (map[string]uint64, error) {
	s, err := b.js.Stream(ctx, b.stream())
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(of))
	if err != nil {
		return nil, err
	}
	return info.State.Subjects, nil
}

// Sync has nothing to do: what JetStream has acknowledged is as safe as the bucket's replicas make it.
func (b *Bucket) Sync(context.Context) error { return nil }

// Get reads an object.
func (b *Bucket) Get(ctx context.Context, name string, most int64) ([]byte, error) {
	data, err := b.read(ctx, name, most)
	_, damage := errors.AsType[*Damage](err)
	switch {
	case damage:
		return nil, err
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return nil, b.absent(ctx, name)
	case errors.Is(err, jetstream.ErrDigestMismatch):
		return nil, damaged(b.Path(name), 0, "%v", err)
	case err != nil:
		return nil, cmp.Or(b.emptied(ctx, name), fmt.Errorf("read %s: %w", b.Path(name), err))
	}
	return data, nil
}

func (b *Bucket) read(ctx context.Context, name string, most int64) ([]byte, error) {
	object, err := b.store.Get(ctx, b.folder+name)
	if err != nil {
		return nil, err
	}
	defer object.Close()
	info, err := object.Info()
	if err != nil {
		return nil, err
	}
	if size := int64(min(info.Size, math.MaxInt64)); size > most {
		return nil, tooLarge(b.Path(name), size, most)
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size+bytes.MinRead))
	_, err = data.ReadFrom(object)
	return data.Bytes(), err
}

// emptied returns a *Damage if none of an object's bytes are there: reading it only waits for the first of them, and times out. It
// returns nil if they are there, or if it cannot tell.
func (b *Bucket) emptied(ctx context.Context, name string) error {
	k, err := b.last(ctx, name)
	if err != nil || !k.exists() || k.info.Size == 0 {
		return nil
	}
	chunks := b.chunks(k.info.NUID)
	there, err := b.chunksThere(ctx, chunks)
	if err != nil || there[chunks] > 0 {
		return nil
	}
	return damaged(b.Path(name), 0, "nothing of its %d bytes is there", k.info.Size)
}

// List asks for the names of all objects, and then for each in the folder, because names are encoded in subjects and JetStream
// cannot filter by a part of one. It does not list as nats.go does, with a watch of the bucket: that ends only when it has seen the
// last object, which may be deleted meanwhile.
//
// Of a block that is not whole the size is 0, so that no save relies on it: an engine that was killed may have left one (Put).
func (b *Bucket) List(ctx context.Context, folder string) ([]Object, error) {
	metas, err := b.list(ctx, folder+"/")
	if err != nil {
		return nil, err
	}
	var there map[string]uint64
	if folder == blocksFolder && len(metas) > 0 { // asked for behind the metadata, whose chunks were put before
		if there, err = b.chunksThere(ctx, b.chunks("*")); err != nil {
			return nil, fmt.Errorf("list %s: %w", b, err)
		}
	}
	var objects []Object
	for _, k := range metas {
		o := Object{Name: b.nameOf(k), Bytes: int64(k.info.Size), Time: k.time}
		if there != nil && !b.whole(&k, there) {
			o.Bytes = 0
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// nameOf is the name of an object in the folder.
func (b *Bucket) nameOf(k objectMeta) string { return strings.TrimPrefix(k.info.Name, b.folder) }

// list returns the metadata of the objects whose names begin with a prefix, ordered by name.
func (b *Bucket) list(ctx context.Context, prefix string) (metas []objectMeta, err error) {
	s, err := b.js.Stream(ctx, b.stream())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", b, err)
	}
	all, err := s.Info(ctx, jetstream.WithSubjectFilter(b.subject("*")))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", b, err)
	}
	for subject := range all.State.Subjects {
		name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, b.subject("")))
		if err != nil {
			return nil, fmt.Errorf("list %s: subject %q: %w", b, subject, err)
		}
		if !strings.HasPrefix(string(name), b.folder+prefix) {
			continue
		}
		k, err := b.last(ctx, strings.TrimPrefix(string(name), b.folder))
		if err != nil {
			return nil, fmt.Errorf("list %s: %s: %w", b, name, err)
		}
		if k.exists() {
			metas = append(metas, k)
		}
	}
	slices.SortFunc(metas, func(a, b objectMeta) int { return strings.Compare(a.info.Name, b.info.Name) })
	return metas, nil
}

// stream is the stream of the bucket, subject the subject of an object's metadata, and chunks that of its bytes.
func (b *Bucket) stream() string                { return "OBJ_" + b.name }
func (b *Bucket) subject(encoded string) string { return "$O." + b.name + ".M." + encoded }
func (b *Bucket) chunks(nuid string) string     { return "$O." + b.name + ".C." + nuid }
func (b *Bucket) subjectOf(name string) string {
	return b.subject(base64.URLEncoding.EncodeToString([]byte(b.folder + name)))
}

// objectMeta is the newest message of an object's metadata.
type objectMeta struct {
	sequence uint64 // 0: there is none
	time     time.Time
	info     jetstream.ObjectInfo
}

func (k *objectMeta) exists() bool { return k.sequence > 0 && !k.info.Deleted }

// whole tells whether all chunks of an object are there. there counts the chunks in the bucket, by subject.
func (b *Bucket) whole(k *objectMeta, there map[string]uint64) bool {
	return there[b.chunks(k.info.NUID)] >= uint64(k.info.Chunks)
}

// last asks the leader of the bucket's stream for an object's metadata. The object store makes direct gets instead, which any
// replica may answer, even one that is behind.
func (b *Bucket) last(ctx context.Context, name string) (k objectMeta, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.js.Options().DefaultTimeout)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"last_by_subj": b.subjectOf(name)})
	if err != nil {
		return k, err
	}
	m, err := b.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+b.stream(), ask)
	if err != nil {
		return k, err
	}
	var reply struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence uint64    `json:"seq"`
			Time     time.Time `json:"time"`
			Data     []byte    `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return k, err
	}
	switch {
	case reply.Error == nil:
		k.sequence, k.time = reply.Message.Sequence, reply.Message.Time
		return k, json.Unmarshal(reply.Message.Data, &k.info)
	case reply.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return k, nil
	}
	return k, reply.Error
}

// absent is the error for an object that a replica said it does not have: ErrNotFound, unless that replica is behind.
func (b *Bucket) absent(ctx context.Context, name string) error {
	k, err := b.last(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", b.Path(name), err)
	case k.exists():
		return fmt.Errorf("read %s: a replica of the bucket that is behind does not have it", b.Path(name))
	}
	return fmt.Errorf("%w: %s", ErrNotFound, b.Path(name))
}

// Delete removes an object with its metadata. JetStream's own delete leaves a message for ever that says that the object was deleted.
// Names of objects are not used again, so a bucket that is saved to and pruned would grow without end, and List would walk
// through all of it.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	k, err := b.last(ctx, name)
	if err == nil && k.sequence > 0 {
		err = b.purge(ctx, name, k)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", b.Path(name), err)
	}
	return nil
}

// purge removes an object's metadata, up to the message k, and then the chunks that k names. What was put since stays.
func (b *Bucket) purge(ctx context.Context, name string, k objectMeta) error {
	s, err := b.js.Stream(ctx, b.stream())
	if err != nil {
		return err
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(b.subjectOf(name)), jetstream.WithPurgeSequence(k.sequence+1)); err != nil {
		return err
	}
	return s.Purge(ctx, jetstream.WithPurgeSubject(b.chunks(k.info.NUID)))
}

// Empty removes all objects, whoever holds the lock.
func (b *Bucket) Empty(ctx context.Context) error {
	metas, err := b.list(ctx, "")
	for _, k := range metas {
		if derr := b.Delete(ctx, b.nameOf(k)); err == nil {
			err = derr
		}
	}
	return err
}

// Clean does nothing, because JetStream cannot find what interrupted writes left (Bucket).
func (b *Bucket) Clean(context.Context) error { return nil }

// Lock puts an object of its own, and fails if there is another lock that is alive. Of two callers at the same time
// at least one sees the other, maybe both. Then the one whose lock is older waits a while for the other one to give up: else both would,
// and two timers that are in step would never save. A lock is alive if it was renewed within the last minute, by the server's
// clock. One that is older is of a process that was killed; one that is a minute or more in the future was put before that clock
// was set back. Both are removed.
func (b *Bucket) Lock(ctx context.Context) (Lock, error) {
	l := &bucketLock{bucket: b, name: locksFolder + "/" + nuid.Next(), stop: make(chan struct{})}
	if err := b.Put(ctx, l.name, []byte(l.name)); err != nil {
		return nil, err
	}
	if err := l.takeOver(ctx); err != nil {
		return nil, errors.Join(err, l.remove(ctx))
	}
	l.renewing.Go(l.renew)
	return l, nil
}

type bucketLock struct {
	bucket   *Bucket
	name     string
	stop     chan struct{}
	renewing sync.WaitGroup
	late     bool // the latest renewal was not answered in time, and may be stored yet; only renew uses it until that has ended

	mu   sync.Mutex
	seen time.Time // when the server stored the newest of the lock's messages that the holder has seen
}

// takeOver fails if another lock is alive, and removes those that are not. If the other one is younger, as that of a caller who came later,
// it looks again for lockPatience. It may also be that of a holder who renewed it just now.
func (l *bucketLock) takeOver(ctx context.Context) error {
	for began := time.Now(); ; {
		younger, err := l.look(ctx)
		if !younger || time.Since(began) >= l.bucket.lockPatience {
			return err
		}
		select {
		case <-time.After(lockLook):
		case <-ctx.Done():
			return err
		}
	}
}

// look fails if another lock is alive, and removes those that are not. younger tells that all that are alive were put or renewed
// after this one.
func (l *bucketLock) look(ctx context.Context) (younger bool, err error) {
	locks, err := l.bucket.List(ctx, locksFolder)
	if err != nil {
		return false, err
	}
	own := slices.IndexFunc(locks, func(o Object) bool { return o.Name == l.name })
	if own < 0 {
		return false, l.lost()
	}
	l.mu.Lock()
	err = l.see(locks[own].Time)
	l.mu.Unlock()
	if err != nil {
		return false, err
	}
	for i, o := range locks {
		if i == own {
			continue
		}
		age := locks[own].Time.Sub(o.Time)
		if age.Abs() >= l.bucket.lockTTL {
			if err := l.bucket.Delete(ctx, o.Name); err != nil {
				return false, err
			}
			continue
		}
		err = fmt.Errorf("%w: %s, renewed %v ago", ErrLocked, l.bucket.Path(o.Name), max(age, 0).Round(time.Millisecond))
		if age >= 0 {
			return false, err
		}
		younger = true
	}
	return younger, err
}

func (l *bucketLock) lost() error {
	return fmt.Errorf("%w: lost the lock %s", ErrLocked, l.bucket.Path(l.name))
}

// renew keeps the lock alive until it is released or lost. It tries a renewal that failed again; if none came in time,
// another may have taken over, which Check shows.
func (l *bucketLock) renew() {
	ticker := time.NewTicker(l.bucket.renewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.bucket.renewInterval)
		err := l.Check(ctx)
		if err == nil {
			l.late = l.bucket.Put(ctx, l.name, []byte(l.name)) != nil
		}
		cancel()
		if errors.Is(err, ErrLocked) {
			return
		}
	}
}

// Check returns ErrLocked if another has taken over, or may have: a renewal that is stored too late, after that, makes the lock exist again.
func (l *bucketLock) Check(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock() // not before the answer: an older one must not come later
	k, err := l.bucket.last(ctx, l.name)
	switch {
	case err != nil:
		return err
	case !k.exists():
		return l.lost()
	}
	return l.see(k.time)
}

// see notes when the server stored the newest of the lock's messages. It returns ErrLocked, also later on, if the lock was not alive all
// the time since the one that the holder saw before. Another who takes the lock over goes by the same clock. The caller holds l.mu.
func (l *bucketLock) see(stored time.Time) error {
	if !l.seen.IsZero() && !stored.Equal(l.seen) && stored.Sub(l.seen).Abs() >= l.bucket.lockTTL {
		return l.lost()
	}
	l.seen = stored
	return nil
}

func (l *bucketLock) Release(ctx context.Context) error {
	close(l.stop)
	l.renewing.Wait()
	if l.late && l.Check(ctx) == nil {
		// The stream stores a renewal that is still on its way before this one, so removing this one removes that, too. If this fails, what
		// comes later ends by itself (lockTTL).
		_ = l.bucket.Put(ctx, l.name, []byte(l.name))
	}
	return l.remove(ctx)
}

// remove removes the lock, even if ctx has ended. But then it waits for NATS no longer than between two renewals, because an
// engine that stops waits for it. A lock that cannot be removed ends by itself (lockTTL).
func (l *bucketLock) remove(ctx context.Context) error {
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTTL)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(l.bucket.renewInterval, cancel) })()
	return l.bucket.Delete(giving, l.name)
}
