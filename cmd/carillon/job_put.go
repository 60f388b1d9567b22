package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobPutCommand(a *app) *cobra.Command {
	var p putFlags
	c := &cobra.Command{
		Use:   "put ID",
		Short: "Create or replace a job",
		Long: `Create or replace a job, and show it once that is durable.

The job comes from flags, or with -f from a file that holds its JSON, or what 'carillon job get --json'
prints, of which only the spec counts. It is replaced as a whole: what is not given has its default.
Putting a job again that is there already and has fires left changes nothing; one that has completed gets
a new version, and an @in fires again.

Schedules: '@at 2026-12-01T09:00:00Z', '@in 1m30s', '@every 250ms', '@daily' and its like, or cron with 5
or 6 fields (seconds first). Without one the job fires only by 'carillon job fire'.`,
		Example: `  carillon job put hello --every 1s --payload-text 'it is time'
  carillon job put report --cron '0 9 * * MON-FRI' --zone Europe/Paris --topic reports --payload '{"kind":"daily"}'
  carillon job put retry-1007 --in 90s --expires 10m --header Tenant=acme --label team=billing
  carillon job put retry-1007 --at 2026-12-01T09:00:00.250Z --if-version 1
  carillon job put invoice-7 -f job.json
  carillon job put invoice-7 -f job.json --if-version 3   # after: carillon job get invoice-7 --json > job.json, and an edit`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			job, ifVersion, err := p.job(c.Context(), a.stdin)
			if err != nil {
				return err
			}
			if c.Flags().Changed("if-version") {
				ifVersion = &p.ifVersion
			}
			var options []carillon.CommandOption
			if ifVersion != nil {
				options = append(options, carillon.IfVersion(*ifVersion))
			}
			if job.ID = args[0]; carillon.CheckJobID(job.ID) != nil {
				return carillon.CheckJobID(job.ID)
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			r, err := client.Put(c.Context(), job, options...)
			if err != nil {
				return err
			}
			return a.printJob(&r)
		},
	}
	p.flags(c)
	return c
}

// putFlags are the flags that make up a job.
type putFlags struct {
	fields          *fields
	command         *cobra.Command
	file            string
	at, in, every   string
	cron            string
	headers, labels []string
	payload         payloadFlags
	ifVersion       uint64
}

func (p *putFlags) flags(c *cobra.Command) {
	p.command, p.fields = c, newFields(c)
	f := c.Flags()
	f.VarP((*nonEmpty)(&p.file), "file", "f", "read the job's JSON from a `file`, - for standard input")
	p.fields.text("schedule", "schedule", "any schedule: @at, @in, @every, @daily …, or cron")
	f.StringVar(&p.at, "at", "", "fire once, at a `time` (RFC 3339)")
	f.StringVar(&p.in, "in", "", "fire once, a `duration` from now")
	f.StringVar(&p.every, "every", "", "fire each `duration`, without drift")
	f.StringVar(&p.cron, "cron", "", "fire by a cron `expression` of 5 or 6 fields")
	c.MarkFlagsMutuallyExclusive("schedule", "at", "in", "every", "cron")
	p.fields.schedule()
	p.fields.number("max-fires", "max_fires", "end after this `number` of scheduled fires")
	p.fields.text("spread", "spread", "move each fire by a stable offset below this `duration`")
	p.fields.text("misfire", "misfire", "`policy` for fires missed while no engine ran: fire_once (default), fire_all or skip")
	p.fields.text("expires", "expires", "skip a fire that is later than this `duration`")
	p.fields.text("topic", "topic", "`topic` that workers take the triggers by (default \"default\")")
	p.fields.text("priority", "priority", "`level` among jobs that are due: high, normal (default) or low")
	p.fields.text("owner", "owner", "`name` of the job's owner, to select jobs by")
	p.payload.flags(c)
	f.StringArrayVar(&p.headers, "header", nil, "header of the triggers, `name=value`; may be repeated")
	f.StringArrayVar(&p.labels, "label", nil, "label to select the job by, `name=value`; may be repeated")
	f.Uint64Var(&p.ifVersion, "if-version", 0, "only if the job is at this `version`; 0: only if there is none")
}

// job makes the job of the flags and of a file, which may also have a condition (if_version).
func (p *putFlags) job(ctx context.Context, stdin io.Reader) (job carillon.Job, ifVersion *uint64, err error) {
	own := make(map[string]any)
	for _, s := range []struct{ flag, form, value string }{
		{"at", "@at ", p.at}, {"in", "@in ", p.in}, {"every", "@every ", p.every}, {"cron", "", p.cron},
	} {
		if p.command.Flags().Changed(s.flag) {
			own["schedule"] = s.form + s.value
		}
	}
	headers, err := pairs("header", p.headers)
	if err != nil {
		return job, nil, err
	}
	labels, err := pairs("label", p.labels)
	if err != nil {
		return job, nil, err
	}
	if headers != nil {
		own["headers"] = headers
	}
	if labels != nil {
		own["labels"] = labels
	}
	if p.file != "" {
		if p.fields.given() != "" || len(own) > 0 || p.payload.given() {
			return job, nil, usagef("-f holds the whole job; the other flags of a job cannot stand beside it")
		}
		body, err := readText(ctx, p.file, stdin)
		if err != nil {
			return job, nil, err
		}
		return parsePutFile(body)
	}
	body, err := p.fields.body(own)
	if err != nil {
		return job, nil, err
	}
	if job, err = carillon.ParseJob(body); err != nil {
		return job, nil, err
	}
	if job.Payload, job.Form, err = p.payload.read(ctx, stdin); err != nil {
		return job, nil, err
	}
	return job, nil, job.Validate()
}

// parsePutFile reads the body of a put, or a reply with the job as 'job get --json' prints it. Of a reply it uses only the spec, which
// is the job's definition.
func parsePutFile(body []byte) (carillon.Job, *uint64, error) {
	job, ifVersion, err := carillon.ParsePut(body)
	if !errors.Is(err, &carillon.Error{Code: carillon.CodeUnknownField, Field: "type"}) {
		return job, ifVersion, err
	}
	var answer struct {
		Type      string          `json:"type"`
		Spec      json.RawMessage `json:"spec"`
		IfVersion json.RawMessage `json:"if_version"`
	}
	if e := json.Unmarshal(body, &answer); e != nil {
		return job, nil, &carillon.Error{Code: carillon.CodeInvalidJSON, Message: e.Error()}
	}
	if answer.IfVersion != nil { // somebody has added it, and would not notice that it has no effect
		return job, nil, &carillon.Error{Code: carillon.CodeUnknownField, Field: "if_version", Message: "is no field beside spec; give --if-version"}
	}
	if answer.Type == carillon.TypeJob && answer.Spec != nil {
		job, err = carillon.ParseJob(answer.Spec)
	}
	return job, nil, err
}

// payloadFlags are the three ways to give a payload.
type payloadFlags struct {
	command          *cobra.Command
	json, text, file string
}

func (p *payloadFlags) flags(c *cobra.Command) {
	p.command = c
	f := c.Flags()
	f.StringVar(&p.json, "payload", "", "payload, any `JSON`, delivered byte for byte")
	f.StringVar(&p.text, "payload-text", "", "payload, any `text`")
	f.Var((*nonEmpty)(&p.file), "payload-file", "payload, the bytes of a `file`, - for standard input")
	c.MarkFlagsMutuallyExclusive("payload", "payload-text", "payload-file")
}

func (p *payloadFlags) given() bool {
	f := p.command.Flags()
	return f.Changed("payload") || f.Changed("payload-text") || f.Changed("payload-file")
}

// read returns the payload, and its form if the flags say that.
func (p *payloadFlags) read(ctx context.Context, stdin io.Reader) ([]byte, carillon.PayloadForm, error) {
	f := p.command.Flags()
	switch {
	case f.Changed("payload"):
		text := strings.Trim(p.json, " \t\r\n") // as from a here-document; a request has white space around it dropped, too
		if text == "" {
			return nil, 0, &carillon.Error{Code: carillon.CodeInvalidJSON, Field: "payload", Message: "is empty; expected any JSON"}
		}
		return []byte(text), carillon.PayloadJSON, nil
	case f.Changed("payload-text"):
		return []byte(p.text), carillon.PayloadText, nil
	case f.Changed("payload-file"):
		b, err := readInput(ctx, p.file, stdin)
		return b, carillon.PayloadNone, err
	}
	return nil, carillon.PayloadNone, nil
}
