package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// failedStreams are streams of the embedded server, such as a topic queue's, that store nothing more because one of their files could not
// be written once. The log stream is not among them: if it stops, the node starts again. For one of the others it does not, because all
// other streams would stand still meanwhile.
type failedStreams struct {
	mu   sync.Mutex
	seen map[string]string // what is wrong, by stream, at the latest look
	both map[string]string // what was wrong at the look before, too: a stream that is just being made or removed is incomplete
}

func (s *failedStreams) update(errs map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.both = maps.Clone(errs)
	maps.DeleteFunc(s.both, func(name, _ string) bool {
		_, before := s.seen[name]
		return !before
	})
	s.seen = errs
}

func (s *failedStreams) problems() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.both)) {
		list = append(list, fmt.Sprintf("nats-server: %s; if that could not be written for a while, start this engine again", s.both[name]))
	}
	return list
}
