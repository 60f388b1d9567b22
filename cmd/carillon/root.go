package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // the command was understood and failed
	exitUsage   = 2 // the command line itself is wrong; nothing was done
)

// app is what the commands of one Run share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	connection     connection
	json           bool
	endSteps       func() // of a bench that shows its steps; nil if it does not
}

// Run runs one command line, without the program's name, and returns the exit code: 0, 1 for a failure,
// 2 for wrong usage. Results go to stdout; an error is one line on stderr. It ends early, and cleanly,
// when ctx does.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := newRootCommand(a)
	strictHelp(root)
	strictCompletion(root, args)
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	// Any error before a command's own code begins is about the command line.
	began := false
	walk(root, func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				began = true
				if err := cmp.Or(noParentFlags(c), notZero(c, "timeout")); err != nil {
					return err
				}
				return run(c, args)
			}
		}
		if check := c.Args; check != nil {
			c.Args = func(c *cobra.Command, args []string) error {
				if err := check(c, args); err != nil {
					return fmt.Errorf("%w; usage: %s", err, c.UseLine())
				}
				return nil
			}
		}
	})
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	message := oneLine(notNumber(err))
	if ctx.Err() != nil {
		message = interrupted(ctx, message)
	}
	if _, usage := errors.AsType[usageError](err); usage || !began {
		fmt.Fprintf(stderr, "carillon: %s (see '%s --help')\n", message, c.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "carillon: %s\n", message)
	return exitFailure
}

// notNumber puts into words that a flag's value is not a number or duration: the library tells it with the names of Go's functions.
func notNumber(err error) error {
	flag, isFlag := errors.AsType[*pflag.InvalidValueError](err)
	if !isFlag {
		return err
	}
	parsing, isNumber := errors.AsType[*strconv.NumError](err)
	expected := "a whole number"
	switch kind := flag.GetFlag().Value.Type(); {
	case kind == "duration":
		expected = aDuration
	case !isNumber:
		return err
	case kind == "bool":
		expected = "true or false"
	case parsing.Err == strconv.ErrRange:
		expected += " of 18 digits at most"
	case strings.HasPrefix(kind, "uint"):
		expected += ", not negative"
	}
	return fmt.Errorf("--%s is %q, must be %s", flag.GetFlag().Name, flag.GetValue(), expected)
}

// aDuration says what a duration must be.
const aDuration = "a duration with its unit, such as 250ms, 90s or 1h30m"

// oneLine puts an error, or several joined ones, on one line, without the library's name in front: the program prints the same
// name itself. That time is up is told in the user's words, not in Go's. An error may quote a file or an answer, so what could command the
// terminal is escaped.
func oneLine(err error) string {
	message := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	message = strings.ReplaceAll(message, context.DeadlineExceeded.Error(), "time is up")
	return printable(strings.TrimPrefix(strings.Join(strings.Fields(message), " "), "carillon: "))
}

// interrupted makes the message of an error that was caused by the end of ctx say "interrupted", and only once.
func interrupted(ctx context.Context, message string) string {
	for _, end := range []error{context.Cause(ctx), ctx.Err()} { // if ctx ended by a signal, the cause is not ctx.Err()
		message = strings.ReplaceAll(message, end.Error(), "interrupted")
	}
	return strings.ReplaceAll(message, "(interrupted) (interrupted)", "(interrupted)")
}

// noParentFlags refuses flags that belong to a command on the way to this one, such as those of 'topic' before 'topic create':
// they would have no effect.
func noParentFlags(c *cobra.Command) (err error) {
	c.VisitParents(func(p *cobra.Command) {
		p.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				err = usagef("--%s goes after %q", f.Name, c.CommandPath())
			}
		})
	})
	return err
}

// usageError is the error of a command that finds its command line wrong.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

func newRootCommand(a *app) *cobra.Command {
	root := group("carillon", "Fire jobs on time, exactly once, through NATS JetStream",
		newServeCommand(a), newDemoCommand(a),
		newJobCommand(a), newPreviewCommand(a), newWatchCommand(a), newWorkCommand(a), newTopicCommand(a),
		newStatusCommand(a), newNodeCommand(a), newLogCommand(a), newSnapshotCommand(a), newBenchCommand(a), newVersionCommand(a),
	)
	root.Example = `  carillon serve
  carillon job put hello --every 1s --payload-text 'it is time'
  carillon watch`
	root.SilenceErrors, root.SilenceUsage = true, true
	// Flags before a command are the root's: carillon --prefix acme job list --prefix invoice-
	root.TraverseChildren = true
	a.connection.flags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print results as JSON")
	return root
}

// strictHelp makes cobra's help command treat unknown commands as wrong usage, instead of showing the root's help.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Run, help.RunE = nil, func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = unknownCommand(c, rest[0])
		}
		if err != nil {
			return err
		}
		return c.Help()
	}
}

// strictCompletion makes cobra's completion command a group like others. Otherwise, for a shell that it does not know, it would print its
// help, which the user would redirect into a file as the script.
func strictCompletion(root *cobra.Command, args []string) {
	root.InitDefaultCompletionCmd(args...)
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE, completion.Args = onlySubcommands, cobra.ArbitraryArgs
	}
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: onlySubcommands, Args: cobra.ArbitraryArgs}
	c.AddCommand(commands...)
	return c
}

func onlySubcommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	return unknownCommand(c, args[0])
}

func unknownCommand(c *cobra.Command, name string) error {
	c.SuggestionsMinimumDistance = 2
	if like := c.SuggestionsFor(name); len(like) > 0 {
		return usagef("unknown command %q for %q; did you mean %s?", name, c.CommandPath(), strings.Join(like, " or "))
	}
	return usagef("unknown command %q for %q", name, c.CommandPath())
}

// hideFlags leaves flags of the root out of the help of a command that refuses them.
func hideFlags(c *cobra.Command, names ...string) {
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, args []string) {
		for _, name := range names {
			c.InheritedFlags().Lookup(name).Hidden = true // each command line has a tree of its own
		}
		help(c, args)
	})
}

// noConnection refuses the flags of the connection beside --data, when nothing connects. The service's prefix may be named all the same.
func noConnection(c *cobra.Command) error {
	for _, name := range connectionFlags {
		if f := c.InheritedFlags().Lookup(name); f != nil && f.Changed && name != "prefix" {
			return usagef("--%s has no meaning with --data: nothing connects to NATS then", name)
		}
	}
	return nil
}

// ownFlags is for a command that does not connect: it refuses the flags of the connection, which would have no
// effect, and does not show them.
func ownFlags(c *cobra.Command) *cobra.Command {
	hideFlags(c, connectionFlags...)
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		var refused error
		for _, name := range connectionFlags {
			if f := c.InheritedFlags().Lookup(name); f != nil && f.Changed && refused == nil {
				refused = usagef("--%s is no flag of %q", name, c.CommandPath())
			}
		}
		if refused != nil {
			return refused
		}
		return run(c, args)
	}
	return c
}
