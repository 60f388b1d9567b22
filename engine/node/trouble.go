package node

import (
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/loglimit"
)

// protestsSaid is how many errors of the connection are told at a time: a right that is missing may be so for many subjects.
const protestsSaid = 10

// trouble is something that is tried again several times a second while it goes wrong. One line in a while says so.
type trouble struct{ lines loglimit.Lines }

// troubles are those of a node.
type troubles struct {
	ticksLost, claimsLost trouble
	chains                trouble // that were lost
	resumes               trouble // of theirs
	unsaid                trouble // an output stream does not say how far it is
	resets                trouble // of the reader
	strays                trouble // records of the log that concern no partition
	unfollowed            trouble
	refusals              trouble // of the credentials, one with each try
	protests              trouble // of the connection else, such as a right that is missing: one with each message
}

// protest logs an error of the connection. Each may say something else, but that of credentials which are refused.
func (n *Node) protest(err error) {
	n.regain.note(err, n.o.Prefix)
	for _, refused := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refused) {
			n.troubles.refusals.tell(n.log, "error of the NATS connection", "error", err)
			return
		}
	}
	n.troubles.protests.tellFirst(protestsSaid, n.log.Warn, "error of the NATS connection", "error", err)
}

// tell logs what goes wrong, or only counts it. args are slog's.
func (t *trouble) tell(log *slog.Logger, what string, args ...any) {
	t.tellFirst(1, log.Warn, what, args...)
}

// tellFirst logs the first so many in a while (loglimit.Every).
func (t *trouble) tellFirst(most int, say func(string, ...any), what string, args ...any) {
	if held, ok := t.lines.Say(most, time.Now()); ok {
		say(what, append(args, "held_back", held)...)
	}
}
