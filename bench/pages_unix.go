//go:build linux || darwin

package bench

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// hold takes memory from the system and touches each page of it.
func hold(bytes int) (*pages, error) {
	if bytes <= 0 {
		return &pages{}, nil
	}
	held, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("bench: %d bytes of memory: %w", bytes, err)
	}
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	return &pages{held}, nil
}

// giveBack gives the pages back to the system. Calling it again does nothing.
func (p *pages) giveBack() error {
	if p.held == nil {
		return nil
	}
	held := p.held
	p.held = nil
	return unix.Munmap(held)
}
