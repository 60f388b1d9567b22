package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Rights are subjects, which may hold wildcards, that a user needs as a whole.
type Rights struct {
	Publish   []string
	Subscribe []string
	Answer    bool // requests, on whatever reply subject they name
}

func (r Rights) and(more Rights) Rights {
	return Rights{
		Publish:   append(append([]string(nil), r.Publish...), more.Publish...),
		Subscribe: append(append([]string(nil), r.Subscribe...), more.Subscribe...),
		Answer:    r.Answer || more.Answer,
	}
}

// rights are what this package does over a connection whose inboxes begin with inbox.
func (c Config) rights(inbox string) Rights {
	r := Rights{
		Publish: []string{
			c.Prefix + ".cmd.*.*", c.Prefix + ".log.>", c.Prefix + ".trigger.>", c.Prefix + ".event.>",
			apiInfo, "$JS.FC." + c.logName() + ".*.*", // flow control of its reader
		},
		Subscribe: []string{inbox + ".>"},
	}
	names := []string{c.logName()}
	for p := range c.Partitions {
		names = append(names, c.outName(p))
	}
	for _, name := range names {
		for _, verb := range []string{"STREAM.INFO.%s", "STREAM.CREATE.%s", "STREAM.MSG.GET.%s", directGet + "%s", "CONSUMER.CREATE.%s.*", "CONSUMER.DELETE.%s.*", stepDown + "%s"} {
			r.Publish = append(r.Publish, apiPrefix+fmt.Sprintf(verb, name))
		}
	}
	r.Publish = append(r.Publish, apiPrefix+"STREAM.PURGE."+c.logName())
	return r
}

const (
	userInfo  = "$SYS.REQ.USER.INFO" // the server tells anyone what they may do, from 2.10 on
	apiPrefix = "$JS.API."
	apiInfo   = apiPrefix + "INFO"
	directGet = "DIRECT.GET."             // and the stream
	stepDown  = "STREAM.LEADER.STEPDOWN." // and the stream
)

// inboxPrefix is what the connection's inboxes begin with.
func inboxPrefix(nc *nats.Conn) string {
	if p := nc.Opts.InboxPrefix; p != "" {
		return p
	}
	return strings.TrimSuffix(nats.InboxPrefix, ".")
}

// checkRights compares what the connection's user may do with what is needed, all of it at once: a server says
// nothing to who sends where it may not but a word on the side, and who waits for an answer waits in vain.
func checkRights(ctx context.Context, nc *nats.Conn, need Rights) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	who, err := whoAmI(ctx, nc)
	if who == nil || err != nil {
		return err // or a server without a system account: what is refused shows one by one (refusal)
	}
	missing := who.Data.Permissions.missing(need)
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("streams: the user %q of account %q %s; docs/deploy/nats/carillon.conf has all that an engine needs",
		who.Data.User, who.Data.Account, strings.Join(missing, ", "))
}

// identity is a server's answer to userInfo.
type identity struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Data struct {
		User        string       `json:"user"`
		Account     string       `json:"account"`
		Permissions *permissions `json:"permissions"`
	} `json:"data"`
}

// whoAmI asks the server that it is connected to, and does not wait for an answer where that says at once that there will be none: then
// it is nil. Behind a leaf node the hub answers, too, with what the leaf may do.
func whoAmI(ctx context.Context, nc *nats.Conn) (*identity, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, sendError(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection, which has none
	if err := nc.PublishRequest(userInfo, inbox, nil); err != nil {
		return nil, sendError(err)
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		return nil, sendError(err)
	}
	if word := nc.LastError(); errors.Is(word, nats.ErrPermissionViolation) {
		return nil, fmt.Errorf("streams: a right is missing: %w", word)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) || err == nil && noResponders(m) {
			return nil, nil
		}
		if err != nil {
			return nil, sendError(err)
		}
		who := &identity{}
		if err := json.Unmarshal(m.Data, who); err != nil {
			return nil, fmt.Errorf("streams: %s: answer: %w", userInfo, err)
		}
		if who.Server.ID == nc.ConnectedServerId() {
			return who, nil
		}
	}
}

// refusal prefers the server's word about a missing right to the silence that followed it.
func refusal(nc *nats.Conn, err error) error {
	word := nc.LastError()
	if err == nil || !errors.Is(word, nats.ErrPermissionViolation) || !timedOut(err) {
		return err
	}
	return fmt.Errorf("streams: a right is missing: %w", word)
}

func timedOut(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// permissions are those of nats-server's answer. None at all allow everything.
type permissions struct {
	Publish   subjects `json:"publish"`
	Subscribe subjects `json:"subscribe"`
	Responses *struct {
		Max int           `json:"max"`
		TTL time.Duration `json:"ttl"`
	} `json:"responses"`
}

type subjects struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// answersAtLeast is how many messages allow_responses must let an engine answer a request with: the progress of an
// import or a snapshot is many.
const answersAtLeast = 1000

// missing says what is needed and not granted, the first few in full.
func (p *permissions) missing(need Rights) (all []string) {
	if p == nil {
		return nil
	}
	publish := p.Publish
	if p.Responses != nil && len(publish.Allow) == 0 {
		publish.Allow = []string{""} // with responses, none is none (server/auth.go, validateResponsePermissions)
	}
	all = append(all, publish.lacks("may not publish on", need.Publish)...)
	all = append(all, p.Subscribe.lacks("may not subscribe to", need.Subscribe)...)
	if need.Answer && !publish.grants("_INBOX.>") && (p.Responses == nil || p.Responses.Max >= 0 && p.Responses.Max < answersAtLeast) {
		all = append(all, fmt.Sprintf("may not answer requests (it needs to publish on _INBOX.>, or allow_responses with max %d or more)", answersAtLeast))
	}
	const most = 12
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}

func (s subjects) lacks(what string, need []string) (all []string) {
	for _, n := range need {
		if !s.grants(n) {
			all = append(all, what+" "+n)
		}
	}
	return all
}

// grants tells whether all of a subject with wildcards is allowed by one entry, and none of it denied.
func (s subjects) grants(subject string) bool {
	allowed := len(s.Allow) == 0
	for _, a := range s.Allow {
		allowed = allowed || match(a, subject, false)
	}
	for _, d := range s.Deny {
		allowed = allowed && !match(d, subject, true)
	}
	return allowed
}

// match tells whether an entry, which may name a queue behind a space, covers all of a subject, or, with overlap,
// has any subject in common with it. Both may hold wildcards.
func match(entry, subject string, overlap bool) bool {
	entry, _, _ = strings.Cut(entry, " ")
	e, s := strings.Split(entry, "."), strings.Split(subject, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(e) || i == len(s):
			return len(e) == len(s)
		case e[i] == ">":
			return true
		case s[i] == ">":
			return overlap
		case e[i] != "*" && e[i] != s[i] && (!overlap || s[i] != "*"):
			return false
		}
	}
}
