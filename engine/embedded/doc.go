// Package embedded runs nats-server inside the engine's own process.
//
// [Start] opens the JetStream directory and answers in-process connections only, so that the engine
// can put back what the log lost before a client sees it; [Server.Listen] then lets clients in:
//
//	s, err := embedded.Start(embedded.Options{Dir: dir})
//	nc, err := s.Connect()  // the engine: full rights, over a pipe in memory (streams.Wire writes there, too)
//	// … read the streams, put back what is lost …
//	err = s.Listen()        // clients: with the rights below
//
// # What the default rights protect, and what they do not
//
// Without a configuration file, everybody except the engine is one user, who may do anything except
//
//   - publish on <prefix>.log.>, <prefix>.trigger.> and <prefix>.event.>;
//   - change, delete, purge, restore or move the log and the output streams, or delete one of their
//     messages;
//   - change the engine's own consumer of the log, make a consumer of the log by the old request, which has no name in its subject, or
//     publish where the engine listens for answers;
//   - subscribe to <prefix>.api.> and <prefix>.tenant.>, so that nobody can pose as the service.
//
// nats-server checks a publish against the rights of the connection that sends it, but it does not
// check what the server itself publishes for a user. So a user who may create streams and consumers, or
// name a reply subject, can make the server publish on a protected subject: by a stream's
// republish, by a push consumer's deliver_subject, by a pull or direct get whose reply subject is
// <prefix>.log.0.tick, or by a publish ack sent there. The default rights stop mistakes and ordinary
// clients, not a hostile one with access to the port. TestServerPublishesForAnyone has a case for each way, so
// that a server which closes one is noticed. The engine treats every record as possibly foreign and
// survives all of them, but it believes a well-made forgery.
//
// If clients are not trusted, give nats-server a configuration file in which the engine has an account of its own that exports
// requests and commands as services: then clients cannot name the subjects of that account at all, in a reply or otherwise.
// Within the accounts that import these, permissions say who may listen: an import does not keep others there from it.
// docs/deploy/nats/carillon.conf is such a file, for engines, operators, clients, workers and tenants.
//
// A reading order: options.go, server.go, rights.go, log.go (the server's own lines).
package embedded
