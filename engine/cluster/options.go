package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Options of a member. Name, Partitions and Report are needed.
type Options struct {
	Bucket       string // default "CARILLON_NODES"
	Replicas     int    // of the bucket, default 1; an existing bucket must have at least as many
	MakeReplicas int    // of the bucket if it is made here, default Replicas

	Name       string // of the node, unique in the cluster: letters, digits, - and _
	Weight     int    // 1 to MaxWeight, default 1
	Zone       string // nodes of one zone may fail together, e.g. a rack
	Version    string // of the binary
	Partitions int    // of the log
	Standbys   int    // of each partition, default 1, -1 none

	// Interval between beats, default 200 ms. Why not less: each beat is a replicated write, read by every node.
	Interval time.Duration
	// Bound is the silence after which a member is taken for dead, default 800 ms. Why not less: it must be at least three
	// intervals, so that two beats may be late. Why not more: together with the interval until the next own beat comes back, it
	// is most of the time that a dead node's triggers wait.
	Bound time.Duration

	Report func() Report // called before each beat, from a goroutine of the member; must not block
	// OnError is called with errors after which the member tries again, from a goroutine of the member. May be nil.
	OnError func(error)
}

// MaxStandbys is how many standbys a partition may have.
const MaxStandbys = 4

const (
	maxPartitions = 1024
	maxReplicas   = 5
)

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (o Options) withDefaults() Options {
	o.Bucket = cmp.Or(o.Bucket, "CARILLON_NODES")
	o.Replicas = cmp.Or(o.Replicas, 1)
	o.MakeReplicas = cmp.Or(o.MakeReplicas, o.Replicas)
	o.Weight = cmp.Or(o.Weight, 1)
	o.Standbys = cmp.Or(o.Standbys, 1)
	o.Interval = cmp.Or(o.Interval, 200*time.Millisecond)
	o.Bound = cmp.Or(o.Bound, 4*o.Interval)
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	return o
}

// Validate names the first option that cannot be used.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case !plainName.MatchString(o.Bucket):
		return fmt.Errorf("cluster: Bucket %q must be up to 64 letters, digits, - and _", o.Bucket)
	case !plainName.MatchString(o.Name):
		return fmt.Errorf("cluster: Name %q must be up to 64 letters, digits, - and _", o.Name)
	case o.Replicas < 1 || o.Replicas > maxReplicas:
		return fmt.Errorf("cluster: Replicas is %d, must be 1 to %d", o.Replicas, maxReplicas)
	case o.MakeReplicas < o.Replicas || o.MakeReplicas > maxReplicas:
		return fmt.Errorf("cluster: MakeReplicas is %d, must be %d to %d", o.MakeReplicas, o.Replicas, maxReplicas)
	case o.Weight < 1 || o.Weight > MaxWeight:
		return fmt.Errorf("cluster: Weight is %d, must be 1 to %d", o.Weight, MaxWeight)
	case o.Partitions < 1 || o.Partitions > maxPartitions:
		return fmt.Errorf("cluster: Partitions is %d, must be 1 to %d", o.Partitions, maxPartitions)
	case o.Standbys < -1 || o.Standbys > MaxStandbys:
		return fmt.Errorf("cluster: Standbys is %d, must be -1 to %d", o.Standbys, MaxStandbys)
	case o.Interval < time.Millisecond:
		return fmt.Errorf("cluster: Interval is %s, must be at least 1ms", o.Interval)
	case o.Bound < 3*o.Interval:
		return fmt.Errorf("cluster: Bound is %s, must be at least three intervals of %s", o.Bound, o.Interval)
	case o.Report == nil:
		return errors.New("cluster: Report is missing")
	}
	return nil
}
