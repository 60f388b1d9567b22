// Package servers is about the nats-servers of an external NATS: how an engine connects to them, and which of them are slow to answer
// at the moment.
//
// A reading order: connect.go (a server on this machine first, and how a dead one is noticed), responsiveness.go (whether a server answers
// as it usually does), watch.go (which servers are slow compared with the others, or whether it is this node's own network).
package servers
