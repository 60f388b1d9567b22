package node

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/loglimit"
)

// Log lines that are limited: about what goes wrong again and again.

// connErrorLines is how many errors of the connection are logged in a while: a missing right may concern many subjects.
const connErrorLines = 10

// saveErrorLines is the same for snapshots that were not saved.
const saveErrorLines = 10

// limitedLog logs something that goes wrong again and again, several times a second: only once, or a few times, in a while.
type limitedLog struct{ lines loglimit.Limiter }

// limitedLogs are those of a node.
type limitedLogs struct {
	ticksLost, claimsLost limitedLog
	chains                limitedLog // lost chains
	resumes               limitedLog // resumed chains
	endUnknown            limitedLog // an output stream does not say how far it is
	resets                limitedLog // the reader starts over
	trims                 limitedLog // the log stream could not be cut: while it is over half full, ten attempts a second
	misrouted             limitedLog // records of the log that concern no partition
	unfollowed            limitedLog // a partition that is placed here could not be taken from another node
	refusals              limitedLog // refused credentials, one with each attempt to connect
	connErrors            limitedLog // other errors of the connection, such as a missing right: one with each message
	membership            limitedLog // there may be trouble with every beat
	connections           limitedLog // the connection is lost, or made again
	saves                 limitedLog // snapshots that were not saved: one with each request
}

// logConnError logs an error of the connection. Refused credentials are logged less often, because each of these errors says the same.
func (n *Node) logConnError(err error) {
	n.lostRights.note(err, n.o.Prefix)
	for _, refused := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refused) {
			n.limitedLogs.refusals.warn(n.log, "error of the NATS connection", "error", err)
			return
		}
	}
	n.limitedLogs.connErrors.logAtMost(connErrorLines, n.log.Warn, "error of the NATS connection", "error", err)
}

// logMembershipError logs an error of this node's membership.
func (n *Node) logMembershipError(err error) {
	n.limitedLogs.membership.warn(n.log, "error of this node's membership; trying again", "error", err)
}

// logConnection has it logged when a connection is lost or made again, and with which server. The library calls these functions one after
// the other.
func (n *Node) logConnection(purpose string) nats.Option {
	connection := cmp.Or(strings.TrimSpace(purpose), "main")
	return func(o *nats.Options) error {
		server := ""
		o.ConnectedCB = func(nc *nats.Conn) { server = nc.ConnectedUrlRedacted() }
		o.ReconnectedCB = func(nc *nats.Conn) {
			server = nc.ConnectedUrlRedacted()
			n.limitedLogs.connections.logAtMost(connErrorLines, n.log.Info, "connected to NATS again", "connection", connection, "server", server)
		}
		o.DisconnectedErrCB = func(_ *nats.Conn, err error) {
			if err != nil { // else the node closed the connection, or goes to another server
				n.limitedLogs.connections.logAtMost(connErrorLines, n.log.Warn, "the connection to NATS is lost; connecting anew",
					"connection", connection, "server", server, "error", err)
			}
		}
		return nil
	}
}

// warn logs a warning, or only counts it if one was logged in the last while (loglimit.Every). args are slog's.
func (l *limitedLog) warn(log *slog.Logger, what string, args ...any) {
	l.logAtMost(1, log.Warn, what, args...)
}

// logAtMost logs with say the first so many in a while (loglimit.Every), with the number of those held back before it.
func (l *limitedLog) logAtMost(most int, say func(string, ...any), what string, args ...any) {
	if held, ok := l.lines.Allow(most, time.Now()); ok {
		say(what, append(args, "held_back", held)...)
	}
}
