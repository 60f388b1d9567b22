// Package servers is an engine's way to the nats-servers of an external NATS: how it connects (connect.go), and which of them are slow to
// answer just now (watch.go), by when each did (promptness.go).
package servers
