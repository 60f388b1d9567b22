package natstest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// Cluster is a cluster of nats-servers with JetStream.
type Cluster struct {
	t       testing.TB
	options []*server.Options
	servers []*server.Server
}

// StartCluster starts n servers, named n1, n2, …, and returns when they have a leader that knows all of them. They end
// with the test. config, which may be empty, is added to the configuration of each.
func StartCluster(t testing.TB, n int, config string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, servers: make([]*server.Server, n)}
	var routes []string
	for range n {
		routes = append(routes, "nats://"+FreeAddress(t))
	}
	for i := range n {
		o := &server.Options{}
		if config != "" {
			o = ParseOptions(t, config)
		}
		host, port := address(routes[i])
		o.ServerName, o.Host, o.Port, o.NoLog, o.NoSigs = fmt.Sprintf("n%d", i+1), host, FreePort(t), true, true
		o.JetStream, o.StoreDir = true, t.TempDir()
		o.Cluster, o.Routes = server.ClusterOpts{Name: "C", Host: host, Port: port}, server.RoutesFromStr(strings.Join(routes, ","))
		c.options = append(c.options, o)
		c.Start(i)
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.Stop(i)
		}
	})
	Eventually(t, "there is a leader that knows all servers", func() bool {
		for _, ns := range c.servers {
			if ns.JetStreamIsLeader() {
				return len(ns.JetStreamClusterPeers()) == n
			}
		}
		return false
	})
	return c
}

// Start starts a server again, at the address that it had.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	c.servers[i] = startServer(c.t, c.options[i].Clone())
}

// Stop shuts a server down, and returns when that is done. If the server is down already, it returns at once.
func (c *Cluster) Stop(i int) {
	if ns := c.servers[i]; ns != nil {
		stopServer(ns)
		c.servers[i] = nil
	}
}

// URL lists the addresses of all servers, up or not.
func (c *Cluster) URL() string {
	var urls []string
	for _, o := range c.options {
		urls = append(urls, fmt.Sprintf("nats://%s:%d", o.Host, o.Port))
	}
	return strings.Join(urls, ",")
}

// Leader returns the index of the server that leads a stream of an account.
func (c *Cluster) Leader(account, stream string) (i int) {
	c.t.Helper()
	Eventually(c.t, "there is a leader of "+stream, func() bool {
		for i = range c.servers {
			if c.servers[i] != nil && c.servers[i].JetStreamIsStreamLeader(account, stream) {
				return true
			}
		}
		return false
	})
	return i
}

func address(url string) (host string, port int) {
	host, p, err := net.SplitHostPort(url[strings.LastIndexByte(url, '/')+1:])
	if err == nil {
		port, err = strconv.Atoi(p)
	}
	if err != nil {
		panic(err)
	}
	return host, port
}
