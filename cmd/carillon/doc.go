// Carillon is a scheduler that fires jobs on time through NATS JetStream. This is its one binary: the
// engine (carillon serve) and the tools that talk to one.
//
//	carillon serve
//	carillon job put hello --every 1s --payload-text 'it is time'
//	carillon watch
//
// docs/cli.md is the reference. The package has only flags and output: what a command does is in the root
// package's client, and the engine is in engine/node.
//
// A reading order: main.go (signals and the exit code), root.go (Run, the tree of commands, how errors
// are printed), connect.go (the flags and environment of the nats CLI), flags.go (values that flags refuse), fields.go and selection.go
// (flags that make a job, and those that select jobs), output.go (tables and JSON), trigger.go (triggers as they are shown), progress.go
// (bars on a terminal), input.go (reading the input for a job), file.go (files that are written as a whole or not at all), then one file
// for each command: job_put.go is carillon job put, and job_change.go has what delete, pause and resume have in common.
// default.pgo is a profile of an engine's CPU under load: go build uses it to optimize the program and what it imports.
//
// The tree is built with spf13/cobra and not with the standard library's flag: subcommands two deep,
// flags in any order with arguments, a help page with examples for each, suggestions for mistyped names
// and shell completion are what users of kubectl and nats expect, and would be several hundred lines
// here. Cobra's generator, viper and global command variables are not used: each Run builds its own tree.
package main
