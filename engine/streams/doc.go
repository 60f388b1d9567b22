// Package streams is the engine's side of JetStream: the log that decides the order of everything, and
// one output stream a partition. It makes and checks the streams, reads the log, and publishes.
//
//	s, err := streams.Open(ctx, nc, streams.Config{Partitions: 8})
//	err = s.Log.Read(ctx, streams.Position{Seq: applied.Seq, Time: applied.Time}, func(batch []streams.Message) error {
//		return apply(batch) // returns once they are synced and applied
//	})
//	last, message, err := s.Out[p].Last(ctx)
//	err = s.Out[p].PublishChained(subject, header, data, last, nil)
//
// docs/formats/streams.md describes the streams and what nats-server does with them.
package streams
