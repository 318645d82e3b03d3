package broker

import (
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// subscribe answers a SUBSCRIBE, filter by filter.
func (c *conn) subscribe(pk *packets.Packet) error {
	if reason := subscribeMistake(pk); reason != "" {
		return c.fail(codeProtocolError, reason)
	}
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Suback}, PacketID: pk.PacketID}
	var granted []*subscription
	var existed []bool
	for _, f := range pk.Filters {
		s, again, err := c.subscribeTo(f)
		if err != nil {
			answer.ReasonCodes = append(answer.ReasonCodes, c.subackCode(err))
			if !c.noProblems && answer.Properties.ReasonString == "" {
				answer.Properties.ReasonString = reasonOf(err)
			}
			c.b.floods.Info().Err(err).Str("client", c.ident.ClientID).Str("filter", f.Filter).Msg("subscription refused")
			continue
		}
		answer.ReasonCodes = append(answer.ReasonCodes, s.qos)
		granted, existed = append(granted, s), append(existed, again)
	}
	answer.Mods.MaxSize = c.maximumPacket
	c.send(answer)
	for i, s := range granted {
		c.pullRetained(s, existed[i])
		c.b.tellSubscribed(c, s.filter)
	}
	return nil
}

func subscribeMistake(pk *packets.Packet) string {
	ids := pk.Properties.SubscriptionIdentifier
	switch {
	case pk.PacketID == 0:
		return "packet identifier 0"
	case len(pk.Filters) == 0:
		return "no filter"
	case len(ids) > 1 || len(ids) == 1 && ids[0] == 0:
		return "a subscription has one identifier, and it is not 0"
	}
	for _, f := range pk.Filters {
		if f.NoLocal && strings.HasPrefix(f.Filter, "$share/") {
			return "no-local on a shared subscription"
		}
		if f.RetainHandling > 2 {
			return "retain handling is 0, 1 or 2"
		}
	}
	return ""
}

// subscribeTo adds one subscription to the index.
func (c *conn) subscribeTo(f packets.Subscription) (s *subscription, existed bool, err error) {
	if err := topics.CheckFilter(f.Filter); err != nil {
		return nil, false, err
	}
	if tooDeep(f.Filter) {
		return nil, false, &topics.Error{Topic: f.Filter, Rule: "too many levels"}
	}
	s = newSubscription(c.client, strings.Clone(f.Filter))
	if err := c.b.acl.subscribe(c.ident, s.plain); err != nil {
		return nil, false, err
	}
	s.qos, s.noLocal, s.retainAsPublished = f.Qos, f.NoLocal, f.RetainAsPublished
	s.retainHandling, s.id = f.RetainHandling, uint32(f.Identifier)
	cl := c.client
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.subs == nil {
		return nil, false, resource.Errorf(resource.Unavailable, "", "the session has ended")
	}
	if old := cl.subs[s.filter]; old == nil && len(cl.subs) >= c.b.opts.Limits.Subscriptions {
		return nil, false, resource.Errorf(resource.Quota, "", "no more than %d subscriptions", c.b.opts.Limits.Subscriptions)
	}
	cl.subs[s.filter] = s
	return s, c.b.router.index.add(s), nil
}

func (c *conn) subackCode(err error) byte {
	if c.ident.Version < 5 {
		return codeUnspecified
	}
	if code := codeOf(err); code != codeBadTopic {
		return code
	}
	return codeBadFilter
}

// pullRetained has the session fetch what is retained, as the subscription's
// retain handling wants it. Shared subscriptions get none.
func (c *conn) pullRetained(s *subscription, existed bool) {
	if s.group != "" || s.retainHandling == 2 || s.retainHandling == 1 && existed {
		return
	}
	d := session.Delivery{QoS: s.qos}
	if s.id > 0 {
		d.IDs = []uint32{s.id}
	}
	c.client.sess.Pull(s.filter, c.b.puller(c.client, s.plain), d)
}

// unsubscribe answers an UNSUBSCRIBE.
func (c *conn) unsubscribe(pk *packets.Packet) error {
	if pk.PacketID == 0 || len(pk.Filters) == 0 {
		return c.fail(codeProtocolError, "packet identifier 0, or no filter")
	}
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, PacketID: pk.PacketID}
	for _, f := range pk.Filters {
		code := byte(codeNoSubscription)
		if c.unsubscribeFrom(f.Filter) {
			code = codeSuccess
		}
		answer.ReasonCodes = append(answer.ReasonCodes, code)
	}
	c.send(answer)
	return nil
}

func (c *conn) unsubscribeFrom(filter string) bool {
	cl := c.client
	cl.mu.Lock()
	s := cl.subs[filter]
	delete(cl.subs, filter)
	cl.mu.Unlock()
	if s == nil {
		return false
	}
	c.b.router.index.remove(s)
	cl.sess.StopPull(filter)
	return true
}
