package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// filled is the value of a flag that may not be empty. A shell makes that of a variable that is not set, and without it a
// selection is of more jobs, a job has nothing in it, an engine has a NATS of its own, or a command goes to another service.
type filled string

func (v *filled) String() string { return string(*v) }
func (v *filled) Type() string   { return "string" }

func (v *filled) Set(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	*v = filled(s)
	return nil
}

// notZero refuses a 0 for flags of which it would be taken for the default.
func notZero(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f.Changed && strings.TrimSuffix(f.Value.String(), "s") == "0" {
			return usagef("--%s is 0, must be more", name)
		}
	}
	return nil
}

// noZeros refuses a 0 for each flag that is another number by default.
func noZeros(c *cobra.Command) error {
	var flags []string
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() != f.DefValue {
			flags = append(flags, f.Name)
		}
	})
	return notZero(c, flags...)
}

// notNegative refuses what is below 0 by the flag's name: further in, an option of another name and unit would be told of.
func notNegative(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if v := c.Flags().Lookup(name).Value.String(); strings.HasPrefix(v, "-") {
			return usagef("--%s is %s, must not be negative", name, v)
		}
	}
	return nil
}
