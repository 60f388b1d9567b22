package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/servers"
)

// A start that finds no leader begins anew, and one that is refused for good does not.
func TestUnreachable(t *testing.T) {
	_, unknown := servers.Config{URL: "a..b:4222"}.Connect("") // no name at all, so that nobody is asked for it
	for _, err := range []error{
		unknown,
		servers.ErrTurnedAway,
		nats.ErrNoServers, jetstream.ErrNoStreamResponse, &jetstream.APIError{Code: 503, ErrorCode: 10008}, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
	} {
		if !errors.Is(unreachable(fmt.Errorf("cluster: join: %w", err)), errUnreachable) {
			t.Errorf("%v is for good", err)
		}
	}
	for _, err := range []error{
		jetstream.ErrStreamNotFound, &jetstream.APIError{Code: 400, ErrorCode: 10052}, syscall.ENOSPC,
		&net.OpError{Op: "remote error", Err: tls.AlertError(116)}, // a certificate is wanted
	} {
		if errors.Is(unreachable(err), errUnreachable) {
			t.Errorf("%v is not for good", err)
		}
	}
}
