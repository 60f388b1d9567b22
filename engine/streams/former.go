package streams

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// What bounds an output stream had before Config.UpdateLimits changed them.
//
// A stream may have dropped outputs that the log does not know to be stored. Whoever looks at the stream's end must judge by the bounds that
// dropped them, or takes them for lost and publishes them again. The log knows a second or so after the stream's bounds were changed, and the
// engine may be killed before that. So one update of the stream changes its bounds and keeps the former ones in its metadata.

// Bounds are what makes a stream drop its oldest messages.
type Bounds struct {
	Bytes int64         `json:"bytes"` // -1: no limit
	Age   time.Duration `json:"age"`   // 0: no limit
}

// least has the narrower of each of two bounds.
func (b Bounds) least(o Bounds) Bounds {
	if o.Bytes > 0 && (b.Bytes <= 0 || o.Bytes < b.Bytes) {
		b.Bytes = o.Bytes
	}
	if o.Age > 0 && (b.Age == 0 || o.Age < b.Age) {
		b.Age = o.Age
	}
	return b
}

// former are the bounds of a stream before it was opened.
type former struct {
	last    Bounds // those it had then
	earlier changed
}

// changed are the bounds of a stream before an update, and its last sequence then: only messages up to there were dropped by them.
type changed struct {
	Bounds
	Upto uint64 `json:"up_to"`
}

// formerKey is the key of the metadata that has the bounds before the last update, as JSON.
const formerKey = "carillon_former_bounds"

func formerOf(info *jetstream.StreamInfo) former {
	f := former{last: Bounds{info.Config.MaxBytes, info.Config.MaxAge}}
	if err := json.Unmarshal([]byte(info.Config.Metadata[formerKey]), &f.earlier); err != nil {
		f.earlier = changed{} // there was no update
	}
	return f
}

// metadata is a stream's metadata for an update of its bounds. How much of what the earlier bounds had dropped the log knows by now is not
// known here, so they count as if they had held until now.
func (f former) metadata(info *jetstream.StreamInfo) map[string]string {
	b, err := json.Marshal(changed{f.last.least(f.earlier.Bounds), info.State.LastSeq})
	if err != nil {
		panic(err) // three numbers
	}
	m := maps.Clone(info.Config.Metadata)
	if m == nil {
		m = map[string]string{}
	}
	m[formerKey] = string(b)
	return m
}

// Former are the bounds by which the stream may have dropped messages behind a sequence before it was opened.
func (o *OutStream) Former(after uint64) Bounds {
	if after < o.former.earlier.Upto {
		return o.former.last.least(o.former.earlier.Bounds)
	}
	return o.former.last
}
