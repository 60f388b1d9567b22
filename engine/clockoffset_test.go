package engine

import "testing"

func TestClockOffset(t *testing.T) {
	var o ClockOffset
	for _, tt := range []struct {
		name                  string
		sent, received, stamp int64
		want                  int64
	}{
		{"the first is taken, though 0 may be as right", 100, 200, 150, -50},
		{"a clock was set: it cannot be any more", 300, 310, 1200, 890},
		{"a slower answer tells less", 400, 440, 1320, 890},
		{"a quicker one more", 500, 502, 1393, 891},
		{"clocks drift", 1_000_402, 1_000_502, 1_001_200, 791},
		{"the host's was set back by little", 900_400, 900_502, 901_202, 791},
		{"the most that it may be", 900_600, 900_700, 901_391, 791},
		{"and by less", 900_600, 900_700, 901_390, 690},
	} {
		if o.Measured(tt.sent, tt.received, tt.stamp); o.NS() != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, o.NS(), tt.want)
		}
	}
}
