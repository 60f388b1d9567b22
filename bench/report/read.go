package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/carillon-scheduler/carillon/bench"
)

// Run is one result, with where it was found.
type Run struct {
	bench.Result
	File string // as given to Read
	Line int    // of the file, where the result begins

	params, machine []field // in the order of the file
	histograms      map[string]*hdrhistogram.Histogram
}

// field is a name in a JSON object and its value.
type field struct {
	name  string
	value json.RawMessage
}

// Read reads the results of a file: JSON objects as `carillon bench --json` prints them, one after the other,
// with or without white space between. An error names the file, line and column.
func Read(r io.Reader, file string) ([]Run, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	at := func(offset int, err error) error {
		before := data[:min(max(offset, 0), len(data))]
		line := 1 + bytes.Count(before, []byte{'\n'})
		return fmt.Errorf("%s:%d:%d: %w", file, line, len(before)-bytes.LastIndexByte(before, '\n'), err)
	}
	var runs []Run
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, at(int(syntax.Offset)-1, err)
		}
		switch {
		case err == io.EOF && len(runs) == 0:
			return nil, at(len(data), errors.New("no result"))
		case err == io.EOF:
			return runs, nil
		case err != nil:
			return nil, at(len(data), err)
		}
		begin := int(d.InputOffset()) - len(raw)
		run, err := parse(raw)
		if err != nil {
			if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				begin += int(wrong.Offset) - 1
			}
			return nil, at(begin, err)
		}
		run.File, run.Line = file, 1+bytes.Count(data[:begin], []byte{'\n'})
		runs = append(runs, run)
	}
}

func parse(raw json.RawMessage) (run Run, err error) {
	if raw[0] != '{' {
		return run, fmt.Errorf("%.40s is no object: not a result of carillon bench --json", raw)
	}
	// Params and machine are kept as they are: those of other systems have fields that ours do not have.
	var v struct {
		bench.Result
		Params  json.RawMessage `json:"params"`
		Machine json.RawMessage `json:"machine"`
		Figures json.RawMessage `json:"figures"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return run, err
	}
	run.Result = v.Result
	switch {
	case v.Workload == "":
		return run, errors.New("no workload: not a result of carillon bench --json")
	case v.Figures == nil:
		return run, errors.New("no figures: not a result of carillon bench --json")
	}
	if run.params, err = fields(v.Params); err != nil {
		return run, fmt.Errorf("params: %w", err)
	}
	if run.machine, err = fields(v.Machine); err != nil {
		return run, fmt.Errorf("machine: %w", err)
	}
	figures, err := fields(v.Figures)
	if err != nil {
		return run, fmt.Errorf("figures: %w", err)
	}
	for _, f := range figures {
		var value float64
		if err := json.Unmarshal(f.value, &value); err != nil || string(f.value) == "null" {
			return run, fmt.Errorf("figures: %s is %.40s, must be a number", f.name, f.value)
		}
		run.Figures = append(run.Figures, bench.Figure{Name: f.name, Value: value})
	}
	for _, t := range run.Targets { // what was not measured has no figure, and its target was missed
		if t.Met && !slices.ContainsFunc(run.Figures, func(f bench.Figure) bool { return f.Name == t.Figure }) {
			return run, fmt.Errorf("targets: no figure %q", t.Figure)
		}
	}
	run.histograms = make(map[string]*hdrhistogram.Histogram)
	for name, encoded := range run.Histograms {
		h, err := hdrhistogram.Decode([]byte(encoded))
		if err != nil {
			return run, fmt.Errorf("histograms: %s: %w", name, err)
		}
		run.histograms[name] = h
	}
	return run, nil
}

// fields splits an object into its fields, in their order.
func fields(raw json.RawMessage) (all []field, err error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '{' {
		return nil, fmt.Errorf("is %.40s, must be an object", raw)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		f := field{name: name.(string)} // a string, because the object has been parsed once already
		if err := d.Decode(&f.value); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}
