package node

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// troublePause is the least time between two lines about one kind of trouble.
const troublePause = 10 * time.Second

// trouble is something that is tried again several times a second while it goes wrong. One line in a while says so.
type trouble struct {
	mu   sync.Mutex
	said time.Time
	held int // since then
}

// protest logs an error of the connection. Each says something else, but that of credentials which are refused.
func (n *Node) protest(err error) {
	for _, refused := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refused) {
			n.refusals.tell(n.log, time.Now(), "NATS", "error", err)
			return
		}
	}
	n.log.Warn("NATS", "error", err)
}

// tell logs what goes wrong, or only counts it. args are slog's.
func (t *trouble) tell(log *slog.Logger, now time.Time, what string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.said.IsZero() && now.Sub(t.said) < troublePause {
		t.held++
		return
	}
	log.Warn(what, append(args, "held_back", t.held)...)
	t.said, t.held = now, 0
}
