// Package servers is an engine's way to the nats-servers of an external NATS: how it connects, and which of them are slow to answer just
// now.
//
// A reading order: connect.go (one of this machine first, and how a dead one is noticed), promptness.go (whether a server answers as it
// usually does), watch.go (who is slow in comparison, or whether it is this node's own network).
package servers
