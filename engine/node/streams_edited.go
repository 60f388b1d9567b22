package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// editedStreams are the streams that somebody has edited so that a start would be refused. Commands or outputs may already be refused or
// lost, and nothing else says why. Each second the log stream is looked at, and in turn one of the output streams or the nodes' bucket.
type editedStreams struct {
	mu    sync.Mutex
	wrong map[string]string // what is wrong, by stream
	next  int               // partition whose output stream is looked at next; behind the last one comes the nodes' bucket
}

func (s *editedStreams) note(stream, wrong string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong == nil {
		s.wrong = make(map[string]string)
	}
	if s.wrong[stream] = wrong; wrong == "" {
		delete(s.wrong, stream)
	}
}

func (s *editedStreams) problems() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stream := range slices.Sorted(maps.Keys(s.wrong)) {
		list = append(list, fmt.Sprintf("stream %s was edited: %s", stream, s.wrong[stream]))
	}
	return list
}

// checkNextStream looks at the next stream: whether it was edited, and whether outputs are missing from its middle.
func (n *Node) checkNextStream(ctx context.Context) error {
	next := n.editedStreams.next
	if n.editedStreams.next++; next == len(n.partitions) {
		n.editedStreams.next = 0
		n.checkBucket(ctx)
		return nil
	}
	p := n.partitions[next]
	out := n.streams.Out[p.number]
	if info, err := out.Info(ctx); err == nil {
		n.editedStreams.note(out.Name(), info.Mismatch)
		n.checkHoles(ctx, p, info)
	}
	return nil
}

// checkBucket looks whether the nodes' bucket was edited.
func (n *Node) checkBucket(ctx context.Context) {
	m := n.member()
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if wrong, err := m.BucketMismatch(ctx); err == nil {
		n.editedStreams.note(nodesStream(n.o.Stream), wrong)
	}
}
