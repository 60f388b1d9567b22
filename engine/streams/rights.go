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

// Rights are what a user must be allowed to do. Subjects may have wildcards; then the user needs all of them.
type Rights struct {
	Publish   []string
	Subscribe []string
	Answer    bool // to answer requests, on whatever reply subject they name
}

func (r Rights) and(more Rights) Rights {
	return Rights{
		Publish:   append(append([]string(nil), r.Publish...), more.Publish...),
		Subscribe: append(append([]string(nil), r.Subscribe...), more.Subscribe...),
		Answer:    r.Answer || more.Answer,
	}
}

// rights are those that this package needs on a connection whose inboxes begin with inbox.
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
	userInfo  = "$SYS.REQ.USER.INFO" // from 2.10 on the server tells any user what they may do
	apiPrefix = "$JS.API."
	apiInfo   = apiPrefix + "INFO"
	directGet = "DIRECT.GET."             // followed by the stream's name
	stepDown  = "STREAM.LEADER.STEPDOWN." // followed by the stream's name
)

// inboxPrefix is what the connection's inboxes begin with.
func inboxPrefix(nc *nats.Conn) string {
	if p := nc.Opts.InboxPrefix; p != "" {
		return p
	}
	return strings.TrimSuffix(nats.InboxPrefix, ".")
}

// checkRights compares what the connection's user may do with everything that is needed, in advance. Otherwise a missing right would
// be hard to see: the server only sends an error on the connection for a publish that is not allowed, and whoever waits for an
// answer to it waits in vain.
func checkRights(ctx context.Context, nc *nats.Conn, need Rights) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	who, err := whoAmI(ctx, nc)
	if who == nil || err != nil {
		return err // nil for a server without a system account: there missing rights show one by one (refusal)
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

// whoAmI asks the connected server who the user is and what the user may do; nil if the server says at once that nobody will answer.
// Behind a leaf node the hub answers, too, with what the leaf node may do; that answer is skipped.
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

// refusal replaces a timeout by the server's error about a missing right, if there was one: it is the likely cause.
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

// permissions are a user's permissions in nats-server's answer. nil allows everything.
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

// answersAtLeast is how many answers to one request allow_responses must allow: the progress of an
// import or a snapshot is many messages.
const answersAtLeast = 1000

// missing lists what is needed and not granted, but no more than the first few.
func (p *permissions) missing(need Rights) (all []string) {
	if p == nil {
		return nil
	}
	publish := p.Publish
	if p.Responses != nil && len(publish.Allow) == 0 {
		publish.Allow = []string{""} // with allow_responses an empty list allows nothing (server/auth.go, validateResponsePermissions)
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

// grants tells whether one entry allows all of a subject, which may have wildcards, and no entry denies any of it.
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

// match tells whether an entry covers all of a subject, or, with overlap, has any subject in common with it. Both may have
// wildcards. The entry may have a queue name behind a space, which is ignored.
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
