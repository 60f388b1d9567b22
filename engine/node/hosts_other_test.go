//go:build !linux

package node_test

import (
	"net"
	"os/exec"
	"testing"
	"time"
)

// host is this machine: separate hosts need Linux.
type host struct{ ip string }

func startHosts(t *testing.T, _ int) (hosts []*host, ok bool) {
	t.Skip("NOT TESTED: hosts of their own take Linux")
	return nil, false
}

func (*host) start(cmd *exec.Cmd) error                      { return cmd.Start() }
func (*host) Dial(network, address string) (net.Conn, error) { return net.Dial(network, address) }
func (*host) cut(out, in bool)                               {}
func (*host) sever(...*host)                                 {}
func (*host) slow(delay, jitter time.Duration, loss float64) {}
func (*host) heal()                                          {}
func (*host) connections() (map[string]bool, error)          { return nil, nil }
