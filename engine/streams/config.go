package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config says which streams to use and how to make those that are missing. The zero value of a field
// is its default.
type Config struct {
	Prefix       string // of subjects, default "carillon"
	StreamPrefix string // of streams, default "CARILLON"
	Partitions   int    // 1 to 1024; default what the log was made with, else 8

	Replicas int // default 1; an existing stream must have at least as many

	// These are for streams that are made. Existing streams keep theirs (an operator changes them with `nats stream edit`),
	// unless UpdateLimits is set.
	LogMaxBytes  int64         // the log refuses records beyond it; default 256 MiB, -1 none
	OutMaxBytes  int64         // of each output stream, which drops the oldest; default 512 MiB / Partitions, but at least MinStreamBytes; -1 none
	OutMaxAge    time.Duration // of an output, default 72 h, -1 none
	PersistAsync bool          // output streams acknowledge before they write; needs one replica

	// UpdateLimits has Open change the bounds of bytes and age of existing streams to those that are given here, but not to
	// defaults. It is for a caller who is the only one who may edit the streams.
	UpdateLimits bool

	// MustExist says that the caller has read the log before: if it is not there, Open fails instead of making it.
	MustExist bool

	Bucket     int64         // bytes of a bucket that the caller makes itself, to be counted in errors about missing room
	Rights     Rights        // what else the caller needs; Open refuses a user who lacks any of it
	Reader     string        // name of the log's consumer, unique among the engines; default a random one
	AckTimeout time.Duration // after which a publish without an answer is ErrTimeout, default 5 s
	Wire       *Wire         // of the connection, if it has one
	OnReset    func(error)   // called from Read with the reason why a reader of the log starts over; may be nil
	// Gather says how long a reader of the log lets a batch grow once nothing more has arrived, because to deliver few
	// records costs as much as many. Called from Read for each batch; nil: no time.
	Gather func() time.Duration
}

// MaxPartitions is how many partitions a service may have.
const MaxPartitions = 1024

// MaxReplicas is how many replicas JetStream lets a stream have.
const MaxReplicas = 5

// MinStreamBytes is the least bound of a stream that can hold any message: a trigger takes up to some 540 KiB. An output stream
// with a lower bound drops a larger message at once, and a log refuses it for good.
const MinStreamBytes = 1 << 20

// MinStreamAge is the least age at which a stream drops its messages: the server wants no less than the duplicate window.
const MinStreamAge = duplicateWindow

const (
	defaultPartitions = 8
	// After a kill nats-server reads every byte of each stream that was written to since it last wrote
	// its state. So a restart takes the longer the more all streams hold together: about 1.2 s with these bounds
	// (BenchmarkRestart), whatever the number of partitions. With less, slow workers would lose triggers
	// (512 MiB is a million); with more, the restart would take longer than its target of a second or so.
	defaultLogMaxBytes = 256 << 20
	defaultOutBytes    = 512 << 20
	// duplicateWindow is the least that the server accepts. Nothing here relies on it.
	duplicateWindow = 100 * time.Millisecond
	// requestTimeout bounds one request to the JetStream API.
	requestTimeout = 5 * time.Second
	// directTimeout bounds a direct get, which is used if the API does not answer. If it fails, the caller asks again.
	directTimeout = time.Second
	directAgain   = 20 * time.Millisecond // until another replica is asked, at first
	directTries   = 8                     // the last answer counts, even if it is that there is no such message
)

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "carillon")
	c.StreamPrefix = cmp.Or(c.StreamPrefix, "CARILLON")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.LogMaxBytes = cmp.Or(c.LogMaxBytes, defaultLogMaxBytes)
	c.OutMaxAge = cmp.Or(c.OutMaxAge, 72*time.Hour)
	c.AckTimeout = cmp.Or(c.AckTimeout, 5*time.Second)
	return c
}

// Validate names the first field that cannot be used.
func (c Config) Validate() error {
	c = c.withDefaults()
	for _, s := range []struct{ field, value string }{
		{"Prefix", c.Prefix}, {"StreamPrefix", c.StreamPrefix}, {"Reader", c.Reader},
	} {
		if strings.ContainsAny(s.value, ".*> \t\r\n/\\") || strings.HasPrefix(s.value, "$") {
			return fmt.Errorf("streams: %s %q must be one plain subject token", s.field, s.value)
		}
	}
	switch {
	case c.Partitions < 0 || c.Partitions > MaxPartitions:
		return fmt.Errorf("streams: Partitions is %d, must be 1 to %d", c.Partitions, MaxPartitions)
	case c.Replicas < 1 || c.Replicas > MaxReplicas:
		return fmt.Errorf("streams: Replicas is %d, must be 1 to %d", c.Replicas, MaxReplicas)
	case c.LogMaxBytes < -1:
		return fmt.Errorf("streams: LogMaxBytes is %d, must be 1 or more, or -1 for no bound", c.LogMaxBytes)
	case c.OutMaxBytes < -1:
		return fmt.Errorf("streams: OutMaxBytes is %d, must be 1 or more, or -1 for no bound", c.OutMaxBytes)
	case c.OutMaxAge < 0 && c.OutMaxAge != -1, c.OutMaxAge > 0 && c.OutMaxAge < MinStreamAge:
		return fmt.Errorf("streams: OutMaxAge is %s, must be at least %s, or -1 for no bound", c.OutMaxAge, MinStreamAge)
	case c.PersistAsync && c.Replicas > 1:
		return errors.New("streams: PersistAsync needs one replica")
	case c.AckTimeout < 0:
		return fmt.Errorf("streams: AckTimeout %s is negative", c.AckTimeout)
	}
	return nil
}

func (c Config) logName() string      { return c.StreamPrefix + "_LOG" }
func (c Config) outName(p int) string { return c.StreamPrefix + "_OUT_" + strconv.Itoa(p) }

// logConfig is the log's configuration. A full log refuses new records, and never drops one that is unread.
func (c Config) logConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        c.logName(),
		Description: "Carillon: the order of everything",
		// A record with three tokens behind cmd would be stored but never read, so the log does not have such subjects.
		Subjects: []string{c.Prefix + ".cmd.*.*", c.Prefix + ".log.>"},
		SubjectTransform: &jetstream.SubjectTransformConfig{
			Source:      c.Prefix + ".cmd.*.*",
			Destination: fmt.Sprintf("%s.log.{{partition(%d,2)}}.{{wildcard(1)}}.{{wildcard(2)}}", c.Prefix, c.Partitions),
		},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxBytes:    c.LogMaxBytes,
		Duplicates:  duplicateWindow,
		DenyDelete:  true,
		AllowDirect: true,
	}
}

func (c Config) outConfig(p int) jetstream.StreamConfig {
	n := strconv.Itoa(p)
	cfg := jetstream.StreamConfig{
		Name:        c.outName(p),
		Description: "Carillon: triggers and events of partition " + n,
		Subjects:    []string{c.Prefix + ".trigger." + n + ".>", c.Prefix + ".event." + n + ".>"},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxBytes:    c.OutMaxBytes,
		Duplicates:  duplicateWindow,
		DenyDelete:  true,
		AllowDirect: true,
	}
	if c.OutMaxBytes == 0 {
		cfg.MaxBytes = max(defaultOutBytes/int64(c.Partitions), MinStreamBytes)
	}
	if c.OutMaxAge > 0 {
		cfg.MaxAge = c.OutMaxAge
	}
	if c.PersistAsync {
		cfg.PersistMode = jetstream.AsyncPersistMode
	}
	return cfg
}

// Streams are the log and the output streams over one connection.
type Streams struct {
	Log *Log
	Out []*OutStream // by partition

	acks   *acks
	sender *sender
	need   Rights
}

// Open makes the streams that are missing, checks those that exist, and starts to listen for
// publish acks on nc. Close ends that; the connection stays the caller's.
//
// Errors: a server older than 2.12; [ErrNoJetStream]; [ErrNoStream] if MustExist is set and the log is not there; a user without the rights
// needed; an account or servers without room for the streams; a number of partitions other than the one that the log was made with; a
// stream whose configuration the engine cannot work with. Each says what is wrong and how it must be.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*Streams, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	given := cfg
	cfg = cfg.withDefaults()
	if err := checkVersion(nc.ConnectedServerVersion()); err != nil {
		return nil, err
	}
	cfg.Partitions = cmp.Or(cfg.Partitions, defaultPartitions)
	need := cfg.rights(inboxPrefix(nc)).and(cfg.Rights)
	if err := checkRights(ctx, nc, need); err != nil {
		return nil, err
	}
	if _, err := checkJetStream(ctx, nc); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return nil, fmt.Errorf("streams: %w", err)
	}
	replicas, err := cfg.openLog(ctx, js, given)
	if err != nil {
		return nil, err
	}
	least := cfg            // of an existing stream
	cfg.Replicas = replicas // output streams that are made now get as many
	before := make([]former, cfg.Partitions)
	for i := range cfg.Partitions {
		p := (i + 1) % cfg.Partitions // 0 is made last: whoever counts the streams from 0 on finds either none or all
		if before[p], err = cfg.openOut(ctx, js, given, p, least.outConfig(p)); err != nil {
			return nil, err
		}
	}
	acks, err := newAcks(nc, cfg.AckTimeout)
	if err != nil {
		return nil, err
	}
	of := func(want jetstream.StreamConfig) stream { return stream{nc: nc, name: want.Name, want: &want} }
	s := &Streams{Log: &Log{stream: of(least.logConfig()), acks: acks, cfg: cfg}, acks: acks, sender: &sender{acks: acks, wire: cfg.Wire}, need: need}
	for p := range cfg.Partitions {
		s.Out = append(s.Out, &OutStream{stream: of(least.outConfig(p)), sender: s.sender, former: before[p]})
	}
	return s, nil
}

// openLog makes the log stream if it is not there, checks it, and takes the number of partitions from it. It returns how many replicas the
// stream has. given has what was asked for, without defaults.
func (c *Config) openLog(ctx context.Context, js jetstream.JetStream, given Config) (replicas int, err error) {
	if c.MustExist {
		if _, err := js.Stream(ctx, c.logName()); errors.Is(err, jetstream.ErrStreamNotFound) {
			return 0, fmt.Errorf("%w as %s", ErrNoStream, c.logName())
		}
	}
	info, err := c.ensure(ctx, js, c.logConfig())
	if err != nil {
		return 0, err
	}
	got := info.Config
	if made, ok := PartitionsOf(got); ok {
		if given.Partitions != 0 && made != given.Partitions {
			return 0, fmt.Errorf("streams: %s was made with %d partitions, %d were asked for: the number cannot change", got.Name, made, given.Partitions)
		}
		c.Partitions = made
	}
	if err := check(got, c.logConfig()); err != nil {
		return 0, err
	}
	return got.Replicas, given.updateLimits(ctx, js, info, given.LogMaxBytes, 0)
}

// openOut makes the output stream of a partition if it is not there, and checks it against the least that it must be. It returns the bounds
// that the stream had before updateLimits.
func (c Config) openOut(ctx context.Context, js jetstream.JetStream, given Config, p int, least jetstream.StreamConfig) (former, error) {
	info, err := c.ensure(ctx, js, c.outConfig(p))
	if err != nil {
		return former{}, err
	}
	if err := check(info.Config, least); err != nil {
		return former{}, err
	}
	return formerOf(info), given.updateLimits(ctx, js, info, given.OutMaxBytes, given.OutMaxAge)
}

// Flush sends what PublishChained has gathered.
func (s *Streams) Flush() { s.sender.flush() }

// CheckRights refuses a connection whose user lacks any of the rights that Open checked.
func (s *Streams) CheckRights(ctx context.Context, nc *nats.Conn) error {
	return checkRights(ctx, nc, s.need)
}

// Close stops listening for acks. Those still awaited end with ErrClosed before it returns.
func (s *Streams) Close() { s.acks.close() }

func (c Config) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	st, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		st, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another engine was faster
			st, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, c.createError(ctx, js.Conn(), want, err)
	}
	return st.CachedInfo(), nil
}

// updateLimits gives an existing stream other bounds, if Config.UpdateLimits says so; 0 leaves a bound as it is. The former ones stay in the
// metadata.
func (c Config) updateLimits(ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo, bytes int64, age time.Duration) error {
	got, want := info.Config, info.Config
	if bytes != 0 {
		want.MaxBytes = bytes
	}
	if age != 0 {
		want.MaxAge = max(age, 0)
	}
	if !c.UpdateLimits || want.MaxBytes == got.MaxBytes && want.MaxAge == got.MaxAge {
		return nil
	}
	if got.Discard == jetstream.DiscardOld {
		want.Metadata = formerOf(info).metadata(info)
	}
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return fmt.Errorf("streams: %s was not given %d bytes and an age of %s as its bounds: %w", got.Name, want.MaxBytes, want.MaxAge, err)
	}
	return nil
}

var partitionCall = regexp.MustCompile(`\{\{\s*[pP]artition\(\s*(\d+)\s*,`)

// PartitionsOf reads from a log stream's configuration how many partitions it was made with; ok is false where it does not say.
func PartitionsOf(log jetstream.StreamConfig) (n int, ok bool) {
	if log.SubjectTransform == nil {
		return 0, false
	}
	m := partitionCall.FindStringSubmatch(log.SubjectTransform.Destination)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil && n >= 1 && n <= MaxPartitions
}

// check refuses a stream that the engine cannot work with.
func check(got, want jetstream.StreamConfig) error {
	if wrong := mismatch(&got, &want); wrong != "" {
		return fmt.Errorf("streams: %s cannot be used: %s", got.Name, wrong)
	}
	return nil
}

// mismatch says what is wrong with a stream's configuration: it compares the settings that the engine relies on. Bounds of
// bytes, and of an output's age and number, more replicas, compression and placement are the operator's.
func mismatch(got, want *jetstream.StreamConfig) string {
	var bad []string
	is := func(ok bool, format string, v ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, v...))
		}
	}
	is(slices.Equal(got.Subjects, want.Subjects), "subjects are %q, must be %q", got.Subjects, want.Subjects)
	is(got.Retention == want.Retention, "retention is %s, must be %s", got.Retention, want.Retention)
	is(got.Discard == want.Discard, "discard is %s, must be %s", got.Discard, want.Discard)
	switch {
	case want.SubjectTransform == nil:
		is(got.SubjectTransform == nil, "there is a subject transform, must be none")
	case got.SubjectTransform == nil:
		is(false, "there is no subject transform, must be %s to %s", want.SubjectTransform.Source, want.SubjectTransform.Destination)
	default:
		is(*got.SubjectTransform == *want.SubjectTransform, "subject transform is %s to %s, must be %s to %s",
			got.SubjectTransform.Source, got.SubjectTransform.Destination,
			want.SubjectTransform.Source, want.SubjectTransform.Destination)
	}
	is(got.Storage == want.Storage, "storage is %s, must be %s", got.Storage, want.Storage)
	is(got.Replicas >= want.Replicas, "it has %d replicas, %d are asked for (nats stream edit %s --replicas %d)",
		got.Replicas, want.Replicas, got.Name, want.Replicas)
	if want.Discard == jetstream.DiscardNew {
		// Only the engine cuts the log, below its checkpoints; how many bytes the log has tells it when.
		is(got.MaxAge == 0, "max age is %s, must be none", got.MaxAge)
		is(got.MaxMsgs <= 0, "max messages is %d, must be none", got.MaxMsgs)
		is(got.MaxConsumers <= 0, "max consumers is %d, must be none", got.MaxConsumers)
		is(got.PersistMode != jetstream.AsyncPersistMode, "it acknowledges before it writes (persist_mode async)")
	}
	is(got.MaxMsgSize <= 0, "max message size is %d, must be none", got.MaxMsgSize)
	is(got.MaxMsgsPerSubject <= 0, "max messages per subject is %d, must be none", got.MaxMsgsPerSubject)
	is(!got.NoAck, "acknowledgements are off")
	is(!got.DenyPurge, "purge is denied")
	is(!got.Sealed, "it is sealed")
	is(got.Mirror == nil && len(got.Sources) == 0, "it mirrors or sources another stream")
	is(!got.AllowRollup, "roll-up headers are allowed, with which a client can remove messages")
	is(!got.AllowMsgTTL, "messages may have a time to live of their own")
	is(!got.AllowMsgCounter, "it is a counter")
	is(!got.AllowMsgSchedules, "message schedules are allowed")
	return strings.Join(bad, "; ")
}

// needsVersion is 2.12 because persist_mode came with it, and so did the check of a replicated stream's last sequence before a
// message is proposed. Chains over three servers are tested from that version on.
const needsVersion = "nats-server must be 2.12 or newer"

func checkVersion(version string) error {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d.", &major, &minor); err != nil {
		return fmt.Errorf("streams: cannot tell the version of nats-server from %q", version)
	}
	if major < 2 || major == 2 && minor < 12 {
		return fmt.Errorf("streams: nats-server is %s; %s", version, needsVersion)
	}
	return nil
}
