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
	mu   sync.Mutex
	said time.Time
	held int // since then
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
