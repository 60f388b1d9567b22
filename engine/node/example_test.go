package node_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
)

// A whole service in the process, on ports of its own, to test code that puts jobs or works on triggers.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "carillon")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	readies, ended := make(chan node.Ready, 1), make(chan error, 1)
	go func() {
		o := node.Options{Data: dir, Listen: "127.0.0.1:0", HTTP: "off", Partitions: 1}
		ended <- node.Run(ctx, o, func(r node.Ready) { readies <- r })
	}()
	var ready node.Ready
	select {
	case ready = <-readies:
	case err := <-ended:
		log.Fatal(err)
	}

	nc, err := nats.Connect(ready.NATS)
	if err != nil {
		log.Fatal(err)
	}
	client := carillon.Connect(nc)
	if _, err := client.Put(ctx, carillon.Job{ID: "hello", Schedule: "@in 1ms"}); err != nil {
		log.Fatal(err)
	}
	working, enough := context.WithCancel(ctx)
	err = client.Work(working, carillon.WorkerOptions{Topic: ">", Name: "test"}, func(_ context.Context, t *carillon.Trigger) error {
		fmt.Println(t.Job, "rang")
		enough()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	nc.Close()
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: hello rang
}
