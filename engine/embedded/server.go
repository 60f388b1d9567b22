package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

// ErrDirInUse is returned by Start when another process runs on the same directory.
var ErrDirInUse = errors.New("embedded: the data directory is in use by another process")

// lockDir locks dir for this process until the file is closed or the process ends. nats-server takes
// no lock of its own, and two servers would destroy the store.
func lockDir(dir string) (*filelock.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: Dir: %w", err)
	}
	f, err := filelock.Lock(filepath.Join(dir, "jetstream.lock"))
	if errors.Is(err, filelock.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrDirInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded: Dir: %w", err)
	}
	return f, nil
}

// readyWait bounds how long a server that has started its recovery may take to answer a connection;
// recovery itself is not bounded.
const readyWait = 10 * time.Second

// Server is a running nats-server. Its methods may be called from any goroutine.
type Server struct {
	ns        *server.Server
	log       *logger
	opts      Options
	dir       string // JetStream's directory
	name      string // of the engine's account
	hp        string // host:port that clients will connect to
	gated     bool
	early     bool // the port was opened in Start
	clustered bool
	lock      *filelock.File

	key        nkeys.KeyPair // of the engine's connections; nil in operator mode
	serviceKey nkeys.KeyPair // of its connection for requests; nil in operator mode
	listen     sync.Mutex    // held while Listen opens the port
	opened     bool          // the port is open
	down       sync.Once
}

// Start runs the server on o.Dir and returns when JetStream has recovered its streams and an
// in-process connection works. Clients are not let in before Listen, unless the
// configuration file has listeners that open in Start (gated).
//
// Errors: ErrDirInUse, an option or a line of the configuration file that cannot be used (named), a
// store that cannot be opened.
func Start(o Options) (_ *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := &Server{opts: o, log: &logger{to: o.Logger}}
	s.log.erred.Store(true) // so that StreamErrors looks: some streams may not have been recovered
	so, err := s.serverOptions()
	if err != nil {
		return nil, err
	}
	if s.lock, err = lockDir(so.StoreDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Shutdown()
		}
	}()
	if so.JetStreamMaxStore <= 0 {
		// Not the server's own default, 3/4 of what is free and of what it holds when it starts. That does not change later: after a
		// start on a disk that is nearly full, the server would refuse everything, however much becomes free.
		so.JetStreamMaxStore = diskBytes(so.StoreDir)
	}
	if so.MaxConn == 0 {
		so.MaxConn = maxClients(openFiles())
	}
	s.dir = filepath.Join(so.StoreDir, server.JetStreamStoreDir)
	s.hp = net.JoinHostPort(so.Host, strconv.Itoa(so.Port))
	s.early, s.clustered = !so.DontListen, so.Cluster.Port != 0
	s.gated = so.DontListen && so.Websocket.Port == 0 && so.MQTT.Port == 0 && so.LeafNode.Port == 0 &&
		len(so.LeafNode.Remotes) == 0 && so.Gateway.Port == 0

	if s.ns, err = server.NewServer(so); err != nil {
		return nil, s.configError(err)
	}
	s.ns.SetLoggerV2(s.log, so.Debug, so.Trace, so.TraceVerbose)
	s.ns.Start()
	if err := s.log.takeFatal(); err != nil {
		return nil, s.configError(err)
	}
	if err := s.probe(); err != nil {
		return nil, err
	}
	return s, nil
}

// ownFiles is more files than the stores and the streams of an engine have open.
const ownFiles = 8192

// maxClients is how many connections clients may have, so that the engine has ownFiles files left, or half of all if there are few.
// It is 0, the server's default, if the number of files is not known.
func maxClients(files uint64) int {
	most := files - min(ownFiles, files/2)
	return int(min(most, server.DEFAULT_MAX_CONNECTIONS))
}

// serverOptions builds nats-server's options. The engine connects as an nkey user that is allowed only on
// in-process connections. Unlike a password, that also works if certificates name the users
// (verify_and_map), and it is of no use to anyone on a socket.
func (s *Server) serverOptions() (*server.Options, error) {
	o := s.opts
	so := &server.Options{}
	if o.ConfigFile != "" {
		var err error
		if so, err = server.ProcessConfigFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("embedded: configuration file %s: %w", o.ConfigFile, err)
		}
		// A reload would read the file again and forget the engine's user.
		so.ConfigFile = ""
	} else {
		host, port, err := hostPort(o.Listen)
		if err != nil {
			return nil, err
		}
		if port == 0 {
			port = server.RANDOM_PORT
		}
		so.Host, so.Port = host, port
	}
	so.JetStream = true
	so.NoSigs = true
	if so.StoreDir == "" {
		so.StoreDir = o.Dir
	}
	if so.JetStreamMaxMemory <= 0 {
		so.JetStreamMaxMemory = maxMemory
	}
	// Start returns without a listener, and Listen runs the exported accept loop. There are two exceptions, which open the client
	// port at once. In a clustered server routing waits for that port (route.go, StartRouting). And a server that maps
	// certificates to users and also has websocket, MQTT or leaf node ports would, while it does not listen, let in through these
	// whoever names a user that has a certificate instead of a password (auth.go, canTLSMap).
	so.DontListen = so.Cluster.Port == 0 && (!so.TLSMap || so.Websocket.Port == 0 && so.MQTT.Port == 0 && so.LeafNode.Port == 0)

	if len(so.TrustedOperators) > 0 || len(so.TrustedKeys) > 0 {
		if o.Credentials == "" {
			return nil, fmt.Errorf("embedded: configuration file %s uses operator mode: the engine needs a credentials file", o.ConfigFile)
		}
		return so, nil
	}
	if o.Credentials != "" {
		return nil, fmt.Errorf("embedded: Credentials need operator mode, which configuration file %s does not use", o.ConfigFile)
	}
	return so, s.addUsers(so)
}

// addUsers adds the engine's users and, if the options do not say who the clients are, the default client.
func (s *Server) addUsers(so *server.Options) error {
	account, err := s.account(so)
	if err != nil {
		return err
	}
	open := so.Users == nil && so.Nkeys == nil && so.Username == "" && so.Authorization == "" && so.AuthCallout == nil
	if s.key, err = addInProcess(so, account, nil); err != nil {
		return err
	}
	if s.serviceKey, err = addInProcess(so, account, serviceRights(s.opts)); err != nil {
		return err
	}
	if open {
		n, err := s.opts.partitions(so.StoreDir)
		if err != nil {
			return err
		}
		so.Users = []*server.User{{
			Username:    "client",
			Account:     account,
			Permissions: clientRights(s.opts, n),
		}}
		so.NoAuthUser, s.log.open = "client", true
	}
	return nil
}

// addInProcess makes a key and adds a user for it who is allowed only on in-process connections.
func addInProcess(so *server.Options, account *server.Account, rights *server.Permissions) (nkeys.KeyPair, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	pub, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	so.Nkeys = append(so.Nkeys, &server.NkeyUser{
		Nkey:                   pub,
		Account:                account,
		Permissions:            rights,
		AllowedConnectionTypes: map[string]struct{}{"IN_PROCESS": {}},
	})
	if so.AuthCallout != nil {
		so.AuthCallout.AuthUsers = append(so.AuthCallout.AuthUsers, pub)
	}
	return key, nil
}

// global is the account of users without one of their own.
const global = "$G"

// account finds the account of the streams among those of a configuration file; nil is $G.
func (s *Server) account(so *server.Options) (*server.Account, error) {
	want := s.opts.Account
	if want == "" && so.NoAuthUser != "" {
		want = global
		for _, u := range so.Users {
			if u.Username == so.NoAuthUser && u.Account != nil {
				want = u.Account.Name
			}
		}
		for _, u := range so.Nkeys {
			if u.Nkey == so.NoAuthUser && u.Account != nil {
				want = u.Account.Name
			}
		}
	}
	var named []*server.Account
	for _, a := range so.Accounts {
		if a.Name == want {
			return a, nil
		}
		if a.Name != so.SystemAccount && a.Name != "$SYS" && a.Name != global {
			named = append(named, a)
		}
	}
	switch {
	case want == global:
		return nil, nil
	case want != "":
		return nil, fmt.Errorf("embedded: configuration file %s has no account %q", s.opts.ConfigFile, want)
	case len(named) == 0:
		return nil, nil
	case len(named) == 1:
		return named[0], nil
	}
	return nil, fmt.Errorf("embedded: configuration file %s has %d accounts: say with --nats-account which one is the engine's", s.opts.ConfigFile, len(named))
}

// probe connects once and checks that the engine's account has JetStream, which an account in a configuration file may lack.
func (s *Server) probe() error {
	if !s.ns.ReadyForConnections(readyWait) {
		return errors.New("embedded: the server did not become ready")
	}
	nc, err := s.Connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	if s.name, err = s.accountOf(nc); err != nil {
		return err
	}
	js, err := nc.JetStream()
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	// A clustered server answers only once its cluster has a leader; Start does not wait for that.
	if _, err := js.AccountInfo(); err != nil && !s.clustered {
		return fmt.Errorf("embedded: JetStream of the engine's account: %w", err)
	}
	if s.clustered {
		return nil
	}
	return s.checkEncrypted()
}

// accountOf returns the name of the account of a connection to this server.
func (s *Server) accountOf(nc *nats.Conn) (string, error) {
	id, err := nc.GetClientID()
	if err != nil {
		return "", fmt.Errorf("embedded: %w", err)
	}
	conns, err := s.ns.Connz(&server.ConnzOptions{CID: id, Username: true})
	if err == nil && len(conns.Conns) == 0 {
		err = errors.New("the engine's connection is gone")
	}
	if err != nil {
		return "", fmt.Errorf("embedded: %w", err)
	}
	return cmp.Or(conns.Conns[0].Account, global), nil
}

// checkEncrypted fails if nats-server has skipped an encrypted stream of the engine, because it has another key or none: making the stream
// again in the same place would destroy the one that is there.
func (s *Server) checkEncrypted() error {
	keys, err := fs.Glob(os.DirFS(s.dir), "*/streams/"+s.opts.StreamPrefix+"_*/"+server.JetStreamMetaFileKey)
	if err != nil || len(keys) == 0 {
		return err
	}
	info, err := s.ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	for _, key := range keys {
		account, stream := strings.Split(key, "/")[0], path.Base(path.Dir(key))
		if !slices.ContainsFunc(info.AccountDetails, func(a *server.AccountDetail) bool {
			return a.Id == account && slices.ContainsFunc(a.Streams, func(d server.StreamDetail) bool { return d.Name == stream })
		}) {
			return fmt.Errorf("embedded: nats-server does not read %s: it is encrypted, with another key than that of jetstream in the configuration file",
				filepath.Join(s.dir, filepath.FromSlash(path.Dir(key))))
		}
	}
	return nil
}

// InProcessConn is the server's end of a new connection without a socket, before its handshake.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// Connect opens an in-process connection with the engine's rights. It reconnects without end, and
// while it is disconnected a publish fails at once instead of being kept for later: the engine
// decides itself what to send again. The caller closes it before Shutdown.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) { return s.connect(s.key, opts) }

// ConnectService is Connect for the connection of a micro service (serviceRights). In operator mode it has the engine's
// credentials, and so all of its rights.
func (s *Server) ConnectService(opts ...nats.Option) (*nats.Conn, error) {
	return s.connect(s.serviceKey, opts)
}

func (s *Server) connect(key nkeys.KeyPair, opts []nats.Option) (*nats.Conn, error) {
	own := []nats.Option{
		nats.InProcessServer(s.ns),
		nats.Name("carillon engine"),
		nats.Timeout(time.Minute), // in process the server is never away; if it takes longer than the library's two seconds, the machine is busy
		nats.CustomInboxPrefix(inboxPrefix),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(), // go on if credentials have expired: they may be renewed
		// The library's own handler writes to standard error, whatever the log's format is.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { s.log.logConnError(err) }),
	}
	if key != nil {
		pub, err := key.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("embedded: %w", err)
		}
		own = append(own, nats.Nkey(pub, key.Sign))
	} else {
		own = append(own, nats.UserCredentials(s.opts.Credentials))
	}
	nc, err := nats.Connect("", append(own, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: connect in process: %w", err)
	}
	return nc, nil
}

// Listen opens the port for clients. An error names the address that cannot be listened on. A second call
// does nothing.
func (s *Server) Listen() error {
	s.listen.Lock()
	defer s.listen.Unlock()
	if s.opened || s.early {
		return nil
	}
	ready := make(chan struct{})
	s.ns.AcceptLoop(ready) // returns with the listener open; it reports failure only to the log
	<-ready
	if s.ns.Addr() == nil {
		err := s.log.takeFatal()
		if err == nil {
			err = errors.New("the server is shutting down")
		}
		asks := ""
		if strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // the server logs the error as text
			asks = " (is another server running there?)"
		}
		return fmt.Errorf("embedded: cannot listen on %s%s: %w", s.hp, asks, err)
	}
	s.opened = true
	return nil
}

// Health returns what is wrong with JetStream; nil if nothing is. If a stream's file could not be
// written once, the stream takes no more messages, and does not answer publishes, until the server is started anew
// (server/filestore.go, setWriteErr). That shows here. So even a disk that was full only briefly needs Shutdown
// and Start.
func (s *Server) Health() error {
	h := s.ns.Healthz(nil)
	if h.StatusCode == http.StatusOK {
		return nil
	}
	return fmt.Errorf("embedded: nats-server: %s: %s", h.Status, h.Error)
}

// StreamErrors returns what is wrong with the streams of the engine's account, by name. In a cluster it returns nothing. It looks at the
// streams only after nats-server has logged an error, which it does for each stream that could not be written, and for as long as something
// is wrong.
func (s *Server) StreamErrors() map[string]string {
	if s.clustered || !s.log.erred.Swap(false) {
		return nil
	}
	errs := make(map[string]string)
	for _, e := range s.ns.Healthz(&server.HealthzOptions{Details: true, Account: s.name}).Errors {
		if e.Type == server.HealthzErrorStream {
			errs[e.Stream] = e.Error
		}
	}
	if len(errs) > 0 {
		s.log.erred.Store(true)
	}
	return errs
}

// ClientURL is the URL for clients, with the port that was chosen. It is valid after Listen.
func (s *Server) ClientURL() string { return s.ns.ClientURL() }

// JetStreamDir is the directory of the streams' files.
func (s *Server) JetStreamDir() string { return s.dir }

// Shutdown stops the server, writes JetStream's state and unlocks the directory. It may be called more
// than once; each call returns when the server is down.
func (s *Server) Shutdown() {
	s.down.Do(func() {
		if s.ns != nil {
			s.ns.Shutdown()
			s.ns.WaitForShutdown()
		}
		s.lock.Close()
	})
}

func (s *Server) configError(err error) error {
	if s.opts.ConfigFile != "" {
		return fmt.Errorf("embedded: configuration file %s: %w", s.opts.ConfigFile, err)
	}
	return fmt.Errorf("embedded: %w", err)
}
