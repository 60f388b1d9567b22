// Package embedded runs nats-server inside the engine's own process.
//
// [Start] opens the JetStream directory and answers in-process connections only, so that the engine
// can put back what the log lost before a client sees it; [Server.Listen] then lets clients in:
//
//	s, err := embedded.Start(embedded.Options{Dir: dir})
//	nc, err := s.Connect()  // the engine: full rights, over a pipe in memory (streams.Wire writes there, too)
//	// … read the streams, heal …
//	err = s.Listen()        // clients: the rights below
//
// # What the default rights protect, and what they do not
//
// Without a configuration file everybody but the engine is one user who may do anything except
//
//   - publish on <prefix>.log.>, <prefix>.trigger.> and <prefix>.event.>;
//   - change, delete, purge, restore or move the log and the output streams, or delete one of their
//     messages;
//   - touch the engine's own consumer of the log, make one of the log without a name, or publish where the engine listens for
//     answers;
//   - subscribe to <prefix>.api.> and <prefix>.tenant.>, so that nobody can pose as the service.
//
// nats-server checks a publish against the rights of the connection that sends it, and against
// nothing when the server itself publishes for a user. Whoever may create streams and consumers or
// name a reply subject can therefore make the server write on a protected subject: by a stream's
// republish, by a push consumer's deliver_subject, by a pull or direct get whose reply subject is
// <prefix>.log.0.tick, or by a publish ack sent there. The default rights stop mistakes and plain
// clients, not a hostile one with access to the port; TestServerPublishesForAnyone holds each way, so
// that a server which closes one is noticed. The engine treats every record as possibly foreign and
// survives them, but a well-made forgery is believed.
//
// Where clients are not trusted, give nats-server a configuration file with an account of the engine's own that exports
// requests and commands as services: subjects of another account cannot be named at all, by a reply or otherwise.
// docs/deploy/nats/carillon.conf is one, for engines, operators, clients, workers and tenants.
//
// A reading order: options.go, server.go, rights.go, log.go (the server's own lines).
package embedded
