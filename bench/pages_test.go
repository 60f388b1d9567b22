package bench

import "testing"

// Memory that is held has been written to. Giving it back a second time does nothing.
func TestPages(t *testing.T) {
	for messages, want := range map[int]int{0: 0, 5: 5 * pagesPerMessage, 10_000: 10_000 * pagesPerMessage} {
		want = min(want, memoryMiB()<<20/4) // 0 where the system does not say how much memory it has
		p, err := holdFor(messages)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(p.held); got != want {
			t.Errorf("for %d messages %d bytes are held, want %d", messages, got, want)
		}
		for i := 0; i < len(p.held); i += 4096 {
			if p.held[i] == 0 {
				t.Fatalf("byte %d of %d was not touched", i, len(p.held))
			}
		}
		for range 2 {
			if err := p.giveBack(); err != nil {
				t.Error(err)
			}
		}
	}
}
