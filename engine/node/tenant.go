package node

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/carillon-scheduler/carillon"
)

// Tenants
//
// What a NATS user may do is a matter of whole tokens: no right and no mapping means "job ids that begin with acme:"
// (TestNoPartialTokens). So a tenant has subjects of its own, <prefix>.tenant.<tenant>.<verb>, and is who may publish
// there: in a nats-server whose accounts map a tenant's <prefix>.api.> to them, clients need not know. The engine
// holds what comes that way to the tenant's job ids, <tenant>:…, and topics, <tenant> and <tenant>.….
//
// Commands without a request, <prefix>.cmd.>, and what is about the whole service are not for tenants.

// tenants are the endpoints that they have, too.
var tenants = map[string]bool{
	"put": true, "delete": true, "pause": true, "resume": true, "fire": true, "get": true, "list": true, "preview": true, "import": true,
	"delete-selection": true, "pause-selection": true, "resume-selection": true,
}

// tenantName has no ':', which ends a tenant in a job id, so no tenant's ids are another's.
var tenantName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// split takes a request's subject apart: <prefix>.api.<verb>[.<job>] or <prefix>.tenant.<tenant>.<verb>[.<job>]; between nodes
// the same behind <prefix>.node.<name>, or <prefix>.node.<name>.<verb>[.<rest>].
func (c *call) split(prefix string) error {
	rest := strings.TrimPrefix(c.Subject(), prefix+".")
	room, rest, _ := strings.Cut(rest, ".")
	if room == "node" { // from another node, which passes it on or asks for itself
		c.passed = true
		_, rest, _ = strings.Cut(rest, ".")
		if !strings.HasPrefix(rest, "api.") && !strings.HasPrefix(rest, "tenant.") {
			_, c.job, _ = strings.Cut(rest, ".")
			return nil
		}
		room, rest, _ = strings.Cut(rest, ".")
	}
	if room == "tenant" {
		c.tenant, rest, _ = strings.Cut(rest, ".")
	}
	_, c.job, _ = strings.Cut(rest, ".")
	if room == "tenant" && !tenantName.MatchString(c.tenant) {
		return &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "tenant",
			Message: fmt.Sprintf("%q is no tenant: 1 to 64 of A-Z a-z 0-9 _ -", c.tenant),
		}
	}
	return nil
}

// mayID tells whether a job id is the tenant's.
func (c *call) mayID(id string) error {
	if c.tenant == "" || strings.HasPrefix(id, c.tenant+":") {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidJobID, Field: "id",
		Message: fmt.Sprintf("%q is no job id of the tenant %s; they begin with %q", id, c.tenant, c.tenant+":"),
	}
}

// mayPut tells whether a job is the tenant's with all that it brings about.
func (c *call) mayPut(job *carillon.Job) error {
	if err := c.mayID(job.ID); err != nil {
		return err
	}
	topic := cmp.Or(job.Topic, carillon.DefaultTopic)
	if c.tenant == "" || topic == c.tenant || strings.HasPrefix(topic, c.tenant+".") {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidTopic, Field: "topic",
		Message: fmt.Sprintf("%q is no topic of the tenant %s: %q, or one that begins with %q", topic, c.tenant, c.tenant, c.tenant+"."),
	}
}

// within narrows a selection to the tenant's jobs.
func (c *call) within(s *carillon.Selection) error {
	if c.tenant == "" {
		return nil
	}
	if s.Prefix == "" {
		s.Prefix = c.tenant + ":"
	}
	if strings.HasPrefix(s.Prefix, c.tenant+":") {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidField, Field: "prefix",
		Message: fmt.Sprintf("%q is beyond the tenant %s, whose job ids begin with %q", s.Prefix, c.tenant, c.tenant+":"),
	}
}
