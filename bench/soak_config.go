package bench

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// SoakConfig says how RunSoak runs. The zero value of a field is its default.
type SoakConfig struct {
	Service Service `json:"-"`

	Rate         int           `json:"triggers_per_s"` // half of recurring jobs, half of one-shots; default 1,000
	Duration     time.Duration `json:"-"`              // whole rounds; default an hour
	Seconds      int           `json:"duration_s"`     // Duration, as it stands in the result
	Round        time.Duration `json:"-"`              // what is judged and reported together, whole seconds; default a minute
	RoundSeconds int           `json:"round_s"`        // Round, as it stands in the result
	KillEvery    time.Duration `json:"-"`              // time between two kills (kill -9) of the engine, which is started again; 0: none
	KillSeconds  float64       `json:"kill_every_s,omitempty"`
	PayloadBytes int           `json:"payload_bytes"` // default 200
	Concurrency  int           `json:"concurrency"`   // handlers of the worker; default 64

	// Report, if not nil, is called after each round.
	Report func(SoakRound) `json:"-"`
}

func (c SoakConfig) withDefaults() (SoakConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Rate = cmp.Or(c.Rate, 1000)
	c.Duration = cmp.Or(c.Duration, time.Hour)
	c.Round = cmp.Or(c.Round, time.Minute)
	c.Seconds, c.RoundSeconds, c.KillSeconds = int(c.Duration/time.Second), int(c.Round/time.Second), c.KillEvery.Seconds()
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	if c.Report == nil {
		c.Report = func(SoakRound) {}
	}
	return c, nil
}

// Validate names the first field that cannot be used.
func (c SoakConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Rate < 100 || c.Rate > 100_000:
		return fmt.Errorf("bench: Rate is %d, must be 100 to 100,000 triggers a second", c.Rate)
	case c.Round < 2*time.Second || c.Round%time.Second != 0:
		return fmt.Errorf("bench: Round is %s, must be whole seconds, 2 or more", c.Round)
	case c.Duration < c.Round || c.Duration%c.Round != 0:
		return fmt.Errorf("bench: Duration is %s, must be whole rounds of %s", c.Duration, c.Round)
	case c.KillEvery < 0:
		return fmt.Errorf("bench: KillEvery %s is negative", c.KillEvery)
	case c.KillEvery > 0 && c.Service.Server != "":
		return errors.New("bench: KillEvery kills the engine, so it must be one of its own")
	case c.PayloadBytes < 3 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 3 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Concurrency < 1 || c.Concurrency > mostHandlers:
		return fmt.Errorf("bench: Concurrency is %d, must be 1 to 100,000", c.Concurrency)
	}
	return nil
}

// SoakRound is the result of one round.
type SoakRound struct {
	Since       time.Duration // the end of the round since the beginning of the first
	Triggers    int           // received
	P50, P99    float64       // ms, due to received
	Max         float64       // ms
	Commands    int           // answered
	CommandP99  float64       // ms
	ResidentMiB float64
	DiskMiB     float64 // of the data directory
	CPU         float64 // percent of a core
	Killed      bool    // the engine was killed, or was still recovering
	Checks      Checks
	Missing     []string // the first few of the missing triggers, as <job>@<due unix ms>
}

// String returns the round as one line.
func (s SoakRound) String() string {
	notes := ""
	if s.ResidentMiB > 0 { // the engine's process is the run's own
		notes = fmt.Sprintf(", %.0f MiB resident, %.0f MiB on disk, CPU %.0f %%", s.ResidentMiB, s.DiskMiB, s.CPU)
	}
	if s.Killed {
		notes += ", killed"
	}
	if len(s.Missing) > 0 {
		notes += ", missing " + strings.Join(s.Missing, " ")
	}
	return fmt.Sprintf("%s: %d triggers, received p50 %s p99 %s max %s ms, early %d missing %d duplicate %d gaps %d stray %d, %d commands p99 %s ms%s",
		s.Since, s.Triggers, number(s.P50), number(s.P99), number(s.Max), s.Checks.Early, s.Checks.Missing, s.Checks.Duplicate, s.Checks.Gaps, s.Checks.Stray,
		s.Commands, number(s.CommandP99), notes)
}
