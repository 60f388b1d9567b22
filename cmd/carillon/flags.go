package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-scheduler/carillon"
)

// nonEmpty is the value of a flag that must not be empty. A shell turns a variable that is not set into an empty value. If that counted as
// no value, a selection would include more jobs, a job would have no content, an engine would run a NATS of its own, or a command
// would go to another service.
type nonEmpty string

func (v *nonEmpty) String() string { return string(*v) }
func (v *nonEmpty) Type() string   { return "string" }

func (v *nonEmpty) Set(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	*v = nonEmpty(s)
	return nil
}

// nonEmpties is the value of a flag that may be repeated, and must not be empty.
type nonEmpties []string

func (v *nonEmpties) String() string { return strings.Join(*v, ",") }
func (v *nonEmpties) Type() string   { return "stringArray" }

func (v *nonEmpties) Set(s string) error {
	var one nonEmpty
	if err := one.Set(s); err != nil {
		return err
	}
	*v = append(*v, s)
	return nil
}

// address is the value of a flag that says where to listen: host:port.
type address string

func (v *address) String() string { return string(*v) }
func (v *address) Type() string   { return "string" }

func (v *address) Set(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New("must be host:port, such as 127.0.0.1:4222, with a port from 0 to 65535")
	}
	*v = address(s)
	return nil
}

// addressOrOff is an address, or off.
type addressOrOff string

func (v *addressOrOff) String() string { return string(*v) }
func (v *addressOrOff) Type() string   { return "string" }

func (v *addressOrOff) Set(s string) error {
	if s == "off" {
		*v = "off"
		return nil
	}
	if err := (*address)(v).Set(s); err != nil {
		return fmt.Errorf("%w, or off", err)
	}
	return nil
}

// notZero refuses a 0 for flags for which it would count as the default.
func notZero(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f.Changed && strings.TrimSuffix(f.Value.String(), "s") == "0" {
			return usagef("--%s is 0, must be more than 0", name)
		}
	}
	return nil
}

// within refuses a number outside of least to most, unless the flag was not given; none says what -1 stands for, if that is allowed, too.
// The flag is one of whole numbers.
func within(c *cobra.Command, name string, least, most int64, none string) error {
	f := c.Flags().Lookup(name)
	n, err := strconv.ParseInt(f.Value.String(), 10, 64)
	if !f.Changed || err == nil && (least <= n && n <= most || none != "" && n == -1) {
		return nil
	}
	allowed := fmt.Sprintf("%d to %d", least, most)
	if most == math.MaxInt64 {
		allowed = fmt.Sprintf("%d or more", least)
	}
	if none != "" {
		allowed += ", or -1 for " + none
	}
	return usagef("--%s is %s, must be %s", name, f.Value, allowed)
}

// optionError makes wrong usage of what the client library says of an option or a topic, before anything is sent. The library's fields have
// the names of the flags.
func optionError(err error) error {
	if e, ok := errors.AsType[*carillon.Error](err); ok && e.Code == carillon.CodeInvalidField {
		return usagef("--%s %s", strings.ReplaceAll(e.Field, "_", "-"), e.Message)
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}

// noZeros refuses a 0 for each flag whose default is another number.
func noZeros(c *cobra.Command) error {
	var flags []string
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() != f.DefValue {
			flags = append(flags, f.Name)
		}
	})
	return notZero(c, flags...)
}

// notNegative refuses values below 0. Its error names the flag: an error from further in would name an option, in another unit.
func notNegative(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if v := c.Flags().Lookup(name).Value.String(); strings.HasPrefix(v, "-") {
			return usagef("--%s is %s, must not be negative", name, v)
		}
	}
	return nil
}
