package carillon_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/nats-io/nats.go"
)

// A job that fires every weekday morning in Paris.
func ExampleClient_Put() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	client := carillon.Connect(nc)

	job, err := client.Put(context.Background(), carillon.Job{
		ID:       "renewals",
		Schedule: "0 30 9 * * MON-FRI",
		Zone:     "Europe/Paris",
		Topic:    "billing.renewals",
		Payload:  []byte(`{"plan":"annual"}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("version", job.Version, "fires next at", job.Next)
}

// A hundred thousand jobs in a few requests. Each job's outcome is reported.
func ExampleClient_Import() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	client := carillon.Connect(nc)

	reminders := func(yield func(carillon.ImportJob) bool) {
		for i := range 100_000 {
			job := carillon.Job{ID: fmt.Sprintf("reminder-%d", i), Schedule: "@in 24h", Topic: "reminders"}
			if !yield(carillon.ImportJob{Job: job}) {
				return
			}
		}
	}
	imported := 0
	err = client.Import(context.Background(), reminders, func(i int, err error) {
		if err != nil {
			log.Printf("reminder-%d: %v", i, err)
			return
		}
		if imported++; imported%10_000 == 0 {
			log.Printf("%d are in", imported)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Only one of several clients creates the job; the others learn that it exists.
func ExampleIfVersion() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	client := carillon.Connect(nc)

	_, err = client.Put(context.Background(), carillon.Job{ID: "report", Schedule: "@daily"}, carillon.IfVersion(0))
	if errors.Is(err, &carillon.Error{Code: carillon.CodeVersionConflict}) {
		fmt.Println("somebody else was first")
	} else if err != nil {
		log.Fatal(err)
	}
}

// A worker that stops gracefully on Ctrl-C. Start as many as needed: workers of one name share the work.
func ExampleClient_Work() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	err = carillon.Connect(nc).Work(ctx, carillon.WorkerOptions{
		Topic:       "billing.>",
		Name:        "billing",
		Concurrency: 32,
		OnError:     func(_ *carillon.Trigger, err error) { log.Print(err) },
	}, func(ctx context.Context, t *carillon.Trigger) error {
		if len(t.Payload) == 0 {
			return carillon.Permanent(errors.New("nothing to do"))
		}
		fmt.Printf("%s came %s after its time: %s\n", t.ID, t.Lateness(), t.Payload)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// All paused jobs of one owner.
func ExampleClient_List() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	request := carillon.ListRequest{Selection: carillon.Selection{Owner: "acme"}, Status: carillon.StatusPaused}
	for job, err := range carillon.Connect(nc).List(context.Background(), request) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.ID, job.Spec.Schedule)
	}
}

// Triggers as they are published. Workers still get them.
func ExampleClient_Watch() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	triggers, err := carillon.Connect(nc).Watch(context.Background(), ">")
	if err != nil {
		log.Fatal(err)
	}
	for t, err := range triggers {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Topic, t.ID, t.Lateness())
	}
}

// A refusal names the field and what is wrong with it.
func ExampleParseJob() {
	_, err := carillon.ParseJob([]byte(`{"schedule": "@every 15m", "spread": 30}`))
	fmt.Println(err)
	_, err = carillon.ParseJob([]byte(`{"schedule": "@every 15m", "headers": {"Nats-Msg-Id": "1"}}`))
	fmt.Println(err)
	// Output:
	// invalid_field: spread: is a number; expected a duration with its unit, such as "30s", "250ms" or "1h30m"
	// invalid_field: headers: the name "Nats-Msg-Id" is reserved: none begins with Nats- or Carillon-
}

// A put sends the job's canonical JSON; the payload keeps its bytes.
func ExampleJob_AppendJSON() {
	job := carillon.Job{Schedule: "@every 1m30s", Spread: 30 * time.Second, Payload: []byte(`{ "n": 1 }`)}
	fmt.Printf("%s\n", job.AppendJSON(nil))
	// Output: {"schedule":"@every 1m30s","spread":"30s","payload":{ "n": 1 }}
}
