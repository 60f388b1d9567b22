package carillon

import "time"

// Limits of a job. Numbers, lengths and counts beyond them are refused with an error that names them.
const (
	MaxJobIDLength  = 128        // bytes
	MaxPayload      = 512 << 10  // bytes
	MaxHeaders      = 32         // headers
	MaxHeaderBytes  = 16 << 10   // bytes, names and values together
	MaxTopicTokens  = 8          // tokens
	MaxTopicLength  = 256        // bytes
	MaxLabels       = 32         // labels
	MaxLabelLength  = 128        // bytes, a name or a value
	MaxOwnerLength  = 128        // bytes
	MaxScheduleText = 512        // bytes
	MinInterval     = time.Millisecond
	MaxInterval     = 3652 * 24 * time.Hour // ten years
	MaxSpread       = 366 * 24 * time.Hour
	MaxExpires      = 3652 * 24 * time.Hour
)

// Misfire says what happens to fires that were missed by over a second because no engine was ticking.
type Misfire uint8

const (
	FireOnce Misfire = iota // one trigger for the latest missed time (the default)
	FireAll                 // each of them, in order
	Skip                    // none; each is counted
)

// Priority orders jobs that are due and waiting.
type Priority uint8

const (
	Normal Priority = iota // the default
	High
	Low
)

// Gap says what happens to a fire whose local time does not exist because clocks went forward.
type Gap uint8

const (
	GapShift Gap = iota // at the first valid instant after the gap (the default)
	GapSkip             // not at all
)

// Fold says which of two equal local times fires when clocks went back.
type Fold uint8

const (
	FoldFirst Fold = iota // the default
	FoldLast
	FoldBoth
)

// PayloadForm is how a payload was given and is given back: it does not change the bytes delivered.
type PayloadForm uint8

const (
	PayloadNone   PayloadForm = iota
	PayloadJSON               // "payload": any JSON, kept byte for byte
	PayloadText               // "payload_text"
	PayloadBase64             // "payload_base64"
)

// Job is what a client asks for: when to fire, and what to deliver then. The zero value of a field is
// its default. Its JSON is the body of a put; see docs/protocol.md for the fields.
type Job struct {
	ID string // not in the JSON of a put: it stands in the subject

	Schedule string        // see docs/protocol.md; empty fires only by Fire
	Zone     string        // IANA name, for cron only; empty is UTC
	Gap      Gap           // "dst_gap"
	Fold     Fold          // "dst_fold"
	Start    time.Time     // zero: no bound; milliseconds
	End      time.Time     // zero: no bound; milliseconds
	MaxFires uint64        // 0: no bound
	Spread   time.Duration // milliseconds
	Misfire  Misfire
	Expires  time.Duration // milliseconds; 0: never
	Topic    string
	Priority Priority
	Payload  []byte // the bytes delivered
	Form     PayloadForm
	Headers  map[string]string
	Owner    string
	Labels   map[string]string
}
