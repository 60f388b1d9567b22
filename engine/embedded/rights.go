package embedded

import "github.com/nats-io/nats-server/v2/server"

// inboxPrefix is where the engine's own connection receives answers and the log. Clients can neither
// publish nor subscribe there: the engine believes that what arrives comes from the server.
const inboxPrefix = "_CARILLON"

// Reader is the name of the engine's consumer of the log, which clients cannot change.
const Reader = "engine"

// The requests of the JetStream API that change a stream or its messages, from the server's list
// (server/jetstream_api.go). INFO, MSG.GET, SNAPSHOT (a backup) and the lists only read.
var streamChanges = []string{
	"CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "MSG.DELETE",
	"PEER.REMOVE", "PEER.EVACUATE", "CANCEL_MOVE", "LEADER.STEPDOWN",
}

// The requests that create, change, drain or remove one consumer. CREATE has a second form, with the
// filter subject behind the consumer's name.
var consumerChanges = []string{
	"CREATE", "DURABLE.CREATE", "DELETE", "PAUSE", "RESET", "UNPIN", "MSG.NEXT",
	"PEER.REMOVE", "PEER.EVACUATE", "LEADER.STEPDOWN",
}

// clientRights is what everybody but the engine may do; doc.go says how far that goes. By the name of a JetStream domain
// ($JS.<domain>.API.>) nobody may do more: nats-server maps that to $JS.API.> before it checks rights (TestConfigFile).
func clientRights(o Options, partitions int) *server.Permissions {
	const api = "$JS.API."
	log := o.logStream()
	names := []string{log}
	for p := range partitions {
		names = append(names, o.outStream(p))
	}

	deny := []string{
		o.Prefix + ".log.>", o.Prefix + ".trigger.>", o.Prefix + ".event.>",
		inboxPrefix + ".>",
		"$JS.FC." + log + "." + Reader + ".>", "$JS.FC.*.*." + log + "." + Reader + ".>",
	}
	for _, name := range names {
		for _, verb := range streamChanges {
			deny = append(deny, api+"STREAM."+verb+"."+name)
		}
	}
	for _, verb := range consumerChanges {
		deny = append(deny, api+"CONSUMER."+verb+"."+log+"."+Reader)
	}
	// The old create request has the consumer's name only in its body, where rights cannot check it.
	deny = append(deny, api+"CONSUMER.CREATE."+log+"."+Reader+".>", api+"CONSUMER.CREATE."+log)
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: deny},
		Subscribe: &server.SubjectPermission{Deny: []string{o.Prefix + ".api.>", o.Prefix + ".tenant.>", inboxPrefix + ".>"}},
	}
}

// ReservedTokens are the tokens behind the prefix under which only engines publish, or which are for requests to the service. An engine
// must not publish there an answer whose subject a client has chosen.
var ReservedTokens = [...]string{"log", "trigger", "event", "cmd", "node", "api", "tenant"}

// serviceRights are the rights of the connection on which requests come. The library itself answers $SRV.PING and the like on it, to
// whatever reply subject a client names. These rights keep such answers away from ReservedTokens and the server's own subjects.
func serviceRights(o Options) *server.Permissions {
	deny := []string{inboxPrefix + ".>", "$JS.>", "$KV.>", "$O.>", "$SRV.>"}
	for _, token := range ReservedTokens {
		deny = append(deny, o.Prefix+"."+token+".>")
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Deny: deny}}
}
