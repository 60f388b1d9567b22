package wal

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("CARILLON_TEST_HOLD"); dir != "" {
		hold(dir)
		return
	}
	goleak.VerifyTestMain(m)
}
