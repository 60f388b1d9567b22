package alarm_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/internal/alarm"
	"github.com/carillon-scheduler/carillon/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// An alarm goes off when its time has come, which is the one that was set last, and when it is woken: however often that is before somebody
// looks, there is one word of it.
func TestAlarm(t *testing.T) {
	a, err := alarm.New()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	began := time.Now()
	for _, d := range []time.Duration{time.Hour, 20 * time.Millisecond} {
		if err := a.Set(d); err != nil {
			t.Fatal(err)
		}
	}
	if <-a.C(); time.Since(began) < 20*time.Millisecond {
		t.Errorf("it rang after %s", time.Since(began))
	}
	for range 3 {
		a.Wake()
	}
	<-a.C()
	select {
	case <-a.C():
		t.Error("it rang once more")
	default:
	}
	if err := a.Set(-time.Second); err != nil { // which has passed
		t.Fatal(err)
	}
	<-a.C()
	new(alarm.Alarm).Wake() // nobody waits for the zero one
}
