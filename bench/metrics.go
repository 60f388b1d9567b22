package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
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

// most reads the upper bound of the highest bucket of a histogram of the engine that has something; 0: none has. What
// is in it is at most an eighth less.
func (e *engine) most(ctx context.Context, name string) (v float64, err error) {
	body, err := e.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		bounds, ok := strings.CutPrefix(line, name+`_bucket{vmrange="`)
		if !ok {
			continue
		}
		bounds, _, _ = strings.Cut(bounds, `"`)
		_, upper, _ := strings.Cut(bounds, "...")
		bound, err := strconv.ParseFloat(upper, 64)
		if err != nil {
			return 0, fmt.Errorf("bench: %s: %w", name, err)
		}
		v = max(v, bound)
	}
	return v, nil
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
