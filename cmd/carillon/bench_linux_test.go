package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a new terminal. What is written to it can be read from shown, with \r\n at the end of each line.
func terminal(t *testing.T) (file, shown *os.File) {
	t.Helper()
	shown, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shown.Close() })
	fd := int(shown.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if file, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file, shown
}

// When a run's table comes, nothing is left of its bars on the line, also of one that stood still or was told of more than its total.
func TestNothingIsLeftOfBars(t *testing.T) {
	for name, last := range map[string]int{"it stood still": 500, "it is full": 1000, "a little more than its total": 1001} {
		file, shown := terminal(t)
		a := &app{stderr: file}
		step := a.steps()
		step("a rather long name of a step", 500, 1000) // this is drawn
		step("a rather long name of a step", last, 1000)
		step("short", 500, 1000)
		step("short", last, 1000)
		a.endSteps()
		fmt.Fprintln(file, "table")

		written, err := bufio.NewReader(shown).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var line []rune // what is seen in the end
		for part := range strings.SplitSeq(strings.TrimSpace(written), "\r") {
			over := []rune(part)
			line = append(over, line[min(len(over), len(line)):]...)
		}
		if got := strings.TrimRight(string(line), " "); got != "table" || strings.Count(written, "short") == 0 {
			t.Errorf("%s: the line is %q of %q", name, got, written)
		}
	}
}
