package node

import (
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/loglimit"
)

// protestsSaid is how many errors of the connection are logged in a while: a missing right may concern many subjects.
const protestsSaid = 10

// trouble is something that goes wrong again and again, several times a second. It is logged only once, or a few times, in a while.
type trouble struct{ lines loglimit.Limiter }

// troubles are the troubles of a node.
type troubles struct {
	ticksLost, claimsLost trouble
	chains                trouble // lost chains
	resumes               trouble // resumed chains
	unsaid                trouble // an output stream does not say how far it is
	resets                trouble // the reader starts over
	strays                trouble // records of the log that concern no partition
	unfollowed            trouble // a partition that is placed here could not be taken from another node
	refusals              trouble // refused credentials, one with each attempt to connect
	protests              trouble // other errors of the connection, such as a missing right: one with each message
}

// protest logs an error of the connection. Refused credentials are logged less often, because each of these errors says the same.
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

// tell logs a warning, or only counts it if one was logged in the last while (loglimit.Every). args are slog's.
func (t *trouble) tell(log *slog.Logger, what string, args ...any) {
	t.tellFirst(1, log.Warn, what, args...)
}

// tellFirst logs with say the first so many in a while (loglimit.Every), with the number of those held back before it.
func (t *trouble) tellFirst(most int, say func(string, ...any), what string, args ...any) {
	if held, ok := t.lines.Allow(most, time.Now()); ok {
		say(what, append(args, "held_back", held)...)
	}
}
