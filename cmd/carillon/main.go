package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	hangup := !signal.Ignored(syscall.SIGHUP) // as it is under nohup
	if hangup {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	// The first signal asks the program to end. After that a second one ends the process, as it does by default, unless both are of the
	// end of a terminal, of which the shell and the system may tell one after the other.
	context.AfterFunc(ctx, func() {
		if hangup {
			signal.Ignore(syscall.SIGHUP) // before stop, after which it would end the process
		}
		stop()
	})
	os.Exit(Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
