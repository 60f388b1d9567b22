package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// metric reads one value of the engine's /metrics.
func (e *engine) metric(ctx context.Context, name string) (v float64, err error) {
	body, err := e.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("bench: the engine has no metric %s", name)
}

// pauses reads one of the engine's histograms, which is of seconds. Pauses count by the bounds of its buckets, so the
// longest may really be up to a fifth less than reported; 1 and 10 ms are bounds.
func (e *engine) pauses(ctx context.Context, name string) (p pauses, err error) {
	body, err := e.metrics(ctx)
	if err != nil {
		return p, err
	}
	var lower time.Duration
	counted := 0
	for line := range strings.Lines(body) {
		bucket, ok := strings.CutPrefix(line, name+`_bucket{le="`)
		if !ok {
			continue
		}
		var bound float64
		var upTo int
		if _, err := fmt.Sscanf(strings.Replace(bucket, `"}`, "", 1), "%g %d", &bound, &upTo); err != nil {
			return p, fmt.Errorf("bench: %s: %q: %w", name, line, err)
		}
		upper := lower // the last bucket has no upper bound
		if !math.IsInf(bound, 1) {
			upper = time.Duration(math.Round(bound * 1e9))
		}
		if n := upTo - counted; n > 0 {
			p.add(lower, upper, n)
		}
		lower, counted = upper, upTo
	}
	return p, nil
}

func (e *engine) metrics(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.http+"/metrics", nil)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return string(body), nil
}
