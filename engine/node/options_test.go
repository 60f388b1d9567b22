package node

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// The error names the option that cannot be used.
func TestOptionsAreNamed(t *testing.T) {
	for want, set := range map[string]func(*Options){
		"Retention is -1s":       func(o *Options) { o.Retention = -time.Second },
		"KeepLog is -1s":         func(o *Options) { o.KeepLog = -time.Second },
		"CompletedMax is -1":     func(o *Options) { o.CompletedMax = -1 },
		"HotJobs is -1":          func(o *Options) { o.HotJobs = -1 },
		"LogMaxBytes is 256":     func(o *Options) { o.LogMaxBytes = 256 },
		"OutMaxBytes is 1048575": func(o *Options) { o.OutMaxBytes = streams.MinStreamBytes - 1 },
		`NATS is " ,"`:           func(o *Options) { o.NATS = " ," },
		"the weight is -1":       func(o *Options) { o.Weight = -1 },
		"Standbys is -5":         func(o *Options) { o.Standbys = -5 },
		"Standbys is 5":          func(o *Options) { o.Standbys = 5 },
		"Replicas is -1":         func(o *Options) { o.Replicas = -1 },
		"Replicas is 6":          func(o *Options) { o.Replicas = 6 },
		"Partitions is 1025":     func(o *Options) { o.Partitions = 1025 },
		"LogMaxBytes is -2":      func(o *Options) { o.LogMaxBytes = -2 },
		"OutMaxAge is -1s":       func(o *Options) { o.OutMaxAge = -time.Second },
		`the name "a b" must be up to 128 letters, digits, -, _ and dots`: func(o *Options) { o.Name = "a b" },
		`the name "\xff\xff`: func(o *Options) { o.Name = strings.Repeat("\xff", 100) }, // as JSON too long for a claim
		`the name "a.b" must be up to 64 letters, digits, - and _`: func(o *Options) { o.Name, o.NATS = "a.b", "nats://a" },
		`what to follow is "some"`:                                 func(o *Options) { o.Follow = "some" },
	} {
		o := Options{Data: "data"}
		set(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	o := Options{Data: "data", Name: "engine-1.example.com"}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	for _, external := range []string{"", "nats://a"} { // hosts may have names that nodes cannot have
		o.NATS = external
		if o.Name = o.nodeName("a b.\xff" + strings.Repeat("c", 200)); o.Validate() != nil {
			t.Errorf("%q: %v", o.Name, o.Validate())
		}
	}
}
