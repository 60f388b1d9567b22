package embedded

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/carillon-scheduler/carillon/internal/loglimit"
)

// logger turns nats-server's log lines into slog records. The server calls Fatalf where its own binary
// would exit; here the first such line is kept and becomes the error of Start or Listen (takeFatal).
type logger struct {
	to      *slog.Logger
	open    bool             // the only user with a password is the default client, whose password is empty
	clients loglimit.Limiter // errors of clients, such as a forbidden publish: each message may cause one
	engine  loglimit.Limiter // errors of the engine's own connections
	erred   atomic.Bool      // an error not of a client was logged since StreamErrors last looked
	mu      sync.Mutex
	fatal   error
}

// clientErrors is how many errors of clients are logged at a time, and how many of the engine's.
const clientErrors = 10

func (l *logger) Debugf(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }
func (l *logger) Tracef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Noticef leaves out lines without a letter: the server draws its banner with them.
func (l *logger) Noticef(format string, v ...any) {
	if line := fmt.Sprintf(format, v...); strings.ContainsFunc(line, unicode.IsLetter) {
		l.to.Info(line)
	}
}

func (l *logger) Warnf(format string, v ...any) {
	if l.open && strings.HasPrefix(format, "Plaintext passwords detected") {
		return
	}
	l.to.Warn(fmt.Sprintf(format, v...))
}

func (l *logger) Errorf(format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	if !strings.Contains(line, " - cid:") {
		l.erred.Store(true)
		l.to.Error(line)
	} else if held, ok := l.clients.Allow(clientErrors, time.Now()); ok {
		l.to.Error(line, "held_back", held)
	}
}

func (l *logger) logConnError(err error) {
	if held, ok := l.engine.Allow(clientErrors, time.Now()); ok {
		l.to.Warn("error of the NATS connection", "error", err, "held_back", held)
	}
}

func (l *logger) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	l.to.Error(err.Error())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == nil {
		l.fatal = err
	}
}

func (l *logger) takeFatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.fatal
	l.fatal = nil
	return err
}
