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
// The rights of a NATS user are for whole tokens of a subject: no right and no mapping can express "job ids that begin with acme:"
// (TestNoPartialTokens). So a tenant has subjects of its own, <prefix>.tenant.<tenant>.<verb>. Whoever may publish there is
// the tenant. If nats-server maps a tenant's <prefix>.api.> to them in the tenant's account, clients need not know about this. The
// engine allows requests on these subjects only the tenant's job ids, <tenant>:…, and topics, <tenant> and <tenant>.….
//
// Raw commands (<prefix>.cmd.>) and requests about the whole service are not for tenants.

// tenants are the endpoints that tenants have, too.
var tenants = map[string]bool{
	"put": true, "delete": true, "pause": true, "resume": true, "fire": true, "get": true, "list": true, "preview": true, "import": true,
	"delete-selection": true, "pause-selection": true, "resume-selection": true,
}

// tenantName allows no ':', which ends the tenant's name in a job id. So no job id belongs to two tenants.
var tenantName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// mayID returns an error if a job id is not the tenant's.
func (c *call) mayID(id string) error {
	if c.tenant == "" || strings.HasPrefix(id, c.tenant+":") {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeInvalidJobID, Field: "id",
		Message: fmt.Sprintf("%q is no job id of the tenant %s; they begin with %q", id, c.tenant, c.tenant+":"),
	}
}

// mayPut returns an error if a job's id or topic is not the tenant's.
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

// within narrows a selection to the tenant's jobs, or returns an error if it is for others.
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
