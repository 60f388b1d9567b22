// Package streams is the engine's side of JetStream: the log that decides the order of everything, and
// one output stream for each partition. It makes and checks the streams, reads the log, and publishes.
//
//	s, err := streams.Open(ctx, nc, streams.Config{Partitions: 8})
//	err = s.Log.Read(ctx, streams.Position{Seq: applied.Seq, Time: applied.Time}, func(batch []streams.Message) error {
//		return apply(batch) // returns once they are synced and applied
//	})
//	info, message, err := s.Out[p].Last(ctx)
//	err = s.Out[p].PublishChained(&streams.Chained{Subject: subject, Header: lines, Data: body, Expect: info.Last}, nil)
//	s.Flush() // after the last message of a round
//
// # Frames
//
// The client library takes the headers of a message as a map, which it sorts and renders. For a trigger that is
// more work than the engine has with the trigger itself. So if the server is in the same process, chains bypass the
// library: sender.go renders HPUB frames straight into one buffer, and Wire writes that buffer to the
// library's own connection, between the library's frames. Handshake, pings, reconnecting and all answers stay
// with the library. In CPU of the process, server included, a message costs 4.9 µs through the library, 3.6 on
// the wire, and 4.6 there with the two ids that link it to the one before it (BenchmarkPublishChained).
//
// To an external server chains go through the library, because that connection, with TLS, belongs to the library.
//
// A single record, or an answer, also goes on the wire while few commands are in progress: the library's frames would wait
// for the goroutine that sends them.
//
// A reading order: config.go (Open, what is checked) with account.go and rights.go, stream.go (what both kinds of streams share) with
// errors.go, log.go and reader.go with session.go and consumer.go, out.go, sender.go, wire.go, acks.go, sync.go (what is on disk).
//
// docs/formats/streams.md describes the streams and what nats-server does with them.
package streams
