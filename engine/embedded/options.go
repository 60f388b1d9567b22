package embedded

import (
	"cmp"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// Options say how to run the server. The zero value of each field is its default; only Dir is required.
type Options struct {
	Dir    string // JetStream's store; created if missing, locked against other processes
	Listen string // host:port for clients, default 127.0.0.1:4222; port 0 takes a free one

	// ConfigFile is a nats-server configuration file. Listeners, TLS, accounts and cluster come from
	// it, and Listen is ignored. Its users have the rights that it gives them; if it has no
	// authorization at all, clients have the default rights.
	ConfigFile  string
	Account     string // with ConfigFile: the account of the streams; default that of no_auth_user, else the only one, else $G
	Credentials string // with ConfigFile in operator (JWT) mode: the engine's .creds file

	Prefix       string // of subjects, default "carillon"
	StreamPrefix string // of streams, default "CARILLON"
	Partitions   int    // how many output streams to protect from clients, besides those found in Dir; default 8

	Logger *slog.Logger // for the server's own log lines; default slog.Default()
}

const (
	defaultListen     = "127.0.0.1:4222"
	defaultPartitions = 8
	maxPartitions     = 1024
	maxMemory         = 1 << 30 // bytes of JetStream memory storage
)

func (o Options) withDefaults() Options {
	o.Listen = cmp.Or(o.Listen, defaultListen)
	o.Prefix = cmp.Or(o.Prefix, "carillon")
	o.StreamPrefix = cmp.Or(o.StreamPrefix, "CARILLON")
	o.Partitions = cmp.Or(o.Partitions, defaultPartitions)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Validate names the first option that cannot be used.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.Dir == "":
		return fmt.Errorf("embedded: Dir is required")
	case o.Partitions < 1 || o.Partitions > maxPartitions:
		return fmt.Errorf("embedded: Partitions is %d, must be 1 to %d", o.Partitions, maxPartitions)
	case o.ConfigFile == "" && (o.Account != "" || o.Credentials != ""):
		return fmt.Errorf("embedded: Account and Credentials need a ConfigFile")
	}
	for _, s := range []struct{ field, value string }{{"Prefix", o.Prefix}, {"StreamPrefix", o.StreamPrefix}} {
		if strings.ContainsAny(s.value, ".*> \t\r\n/\\") || strings.HasPrefix(s.value, "$") {
			return fmt.Errorf("embedded: %s %q must be one plain subject token", s.field, s.value)
		}
	}
	if o.ConfigFile == "" {
		if _, _, err := hostPort(o.Listen); err != nil {
			return err
		}
	}
	return nil
}

func hostPort(listen string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("embedded: Listen %q is not host:port: %w", listen, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("embedded: Listen %q: port must be 0 to 65535", listen)
	}
	return host, port, nil
}

// logStream and outStream name the streams as package streams does.
func (o Options) logStream() string      { return o.StreamPrefix + "_LOG" }
func (o Options) outStream(p int) string { return o.StreamPrefix + "_OUT_" + strconv.Itoa(p) }

// partitions counts the output streams to protect: those of Options.Partitions, and those that storeDir already has,
// since the number is fixed when the streams are made.
func (o Options) partitions(storeDir string) (int, error) {
	stored, err := StoredPartitions(storeDir, o.StreamPrefix)
	if err != nil {
		return 0, fmt.Errorf("embedded: Dir %q: %w", o.Dir, err)
	}
	return max(o.Partitions, stored), nil
}

// StoredPartitions is how many partitions have an output stream in the directory of a server, which need not run: one more than the
// greatest number of one. It is 0 if there is none, or the directory cannot be read. Error: streamPrefix is no plain name.
func StoredPartitions(dir, streamPrefix string) (n int, err error) {
	prefix := streamPrefix + "_OUT_"
	found, err := fs.Glob(os.DirFS(dir), server.JetStreamStoreDir+"/*/streams/"+prefix+"*") // dir itself is no pattern
	for _, stream := range found {
		p, err := strconv.Atoi(strings.TrimPrefix(path.Base(stream), prefix))
		if err == nil && p >= n && p < maxPartitions {
			n = p + 1
		}
	}
	return n, err
}
