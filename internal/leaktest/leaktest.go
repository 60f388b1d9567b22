// Package leaktest looks for goroutines that the tests of a package left behind.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines that end by themselves may take to end. goleak alone waits for less than a second, and the
// machine may stand still for longer.
const patience = 30 * time.Second

// Main runs tests, and ends the process. If the tests passed but some goroutine stays, it fails.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := left(options); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left of tests that passed:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func left(options []goleak.Option) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = goleak.Find(options...); err == nil {
			return nil
		}
	}
	return err
}
