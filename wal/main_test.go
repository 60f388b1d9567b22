package wal

import (
	"os"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/leaktest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("CARILLON_TEST_HOLD"); dir != "" {
		hold(dir)
		return
	}
	leaktest.Main(m)
}
