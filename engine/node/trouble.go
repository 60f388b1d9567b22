package node

import (
	"log/slog"
	"sync"
	"time"
)

// troublePause is the least time between two lines about one kind of trouble.
const troublePause = 10 * time.Second

// trouble is something that is tried again several times a second while it goes wrong. One line in a while says so.
type trouble struct {
	what string

	mu   sync.Mutex
	said time.Time
	held int // since then
}

// tell logs an error, or only counts it.
func (t *trouble) tell(log *slog.Logger, now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.said.IsZero() && now.Sub(t.said) < troublePause {
		t.held++
		return
	}
	log.Warn(t.what, "error", err, "held_back", t.held)
	t.said, t.held = now, 0
}
