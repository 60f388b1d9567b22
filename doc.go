// Package carillon has the types of Carillon, a scheduler that fires jobs on time through NATS
// JetStream, and its Go client and worker.
//
// A job says when to fire and what to deliver then. Put it under an id, and at each due millisecond its
// trigger is stored in a JetStream stream, exactly once; workers take it from there:
//
//	nc, err := nats.Connect("nats://127.0.0.1:4222")
//	…
//	client := carillon.Connect(nc)
//	_, err = client.Put(ctx, carillon.Job{
//		ID:       "renewals",
//		Schedule: "0 30 9 * * MON-FRI",
//		Zone:     "Europe/Paris",
//		Topic:    "billing.renewals",
//		Payload:  []byte(`{"plan":"annual"}`),
//	})
//	…
//	err = client.Work(ctx, carillon.WorkerOptions{Topic: "billing.>", Name: "billing"},
//		func(ctx context.Context, t *carillon.Trigger) error {
//			return renew(ctx, t.ID, t.Payload) // t.ID is the same if the trigger ever comes again
//		})
//
// # Reading order
//
// [Job] and its limits; [Client], whose calls say which errors they return; [Client.Work] and
// [WorkerOptions]; [Client.Watch] to see triggers as they are published; [Client.CreateTopicQueue] for
// workers in other languages. Every refusal is an [Error] with one of its codes.
//
// # Tests of your own
//
// The function Run of the package engine/node runs a whole service in the test's process, with its own ports and directory; see its
// example.
//
// # What else is here
//
// The rest is used by the service itself: [ParsePut] and the other Parse functions for commands and requests
// read strictly; the Append functions write replies and events; [Names] has the subjects and streams that clients use. None of
// these does I/O, reads a clock or depends on the order of a map. docs/protocol.md describes all of it for
// clients in other languages.
package carillon
