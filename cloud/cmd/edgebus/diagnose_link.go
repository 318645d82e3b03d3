package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// link: is there one? It returns the hub's view, or the core's without it; nil if nobody knows the node.
func (d *diagnosis) link(f facts) *resource.Link {
	var core *resource.Link
	if f.core != nil {
		core = &f.core.Links[0]
	}
	if f.hub == nil {
		if core != nil {
			d.state(*core, core, time.Now())
		}
		return core
	}
	now, _ := resource.ParseTime(f.hub.Now)
	if len(f.hub.Links) == 0 || f.hub.Links[0].State == resource.Unknown {
		if core != nil && core.State != resource.Online { // the cause, before what comes of it
			d.add(wrong, connectAdvice(core.LastError), "the core is not connected to %s: %s", core.Peer, orUnknown(core.LastError))
		}
		d.add(wrong, "check node.name and link.server in its core.yaml; `edgebus doctor` lists the nodes there are", "the hub has never heard of a node %s", f.node)
		if len(f.hub.Links) > 0 {
			d.rejections(f.hub.Links[0], now)
		}
		return nil
	}
	l := f.hub.Links[0]
	d.state(l, core, now)
	d.rejections(l, now)
	return &l
}

// state: connected, and since when?
func (d *diagnosis) state(l resource.Link, core *resource.Link, now time.Time) {
	switch {
	case l.State == resource.Online && core != nil && core.State != resource.Online:
		d.add(wrong, "one end has lost the connection; the hub notices within one and a half keep-alives",
			"the hub thinks that the node is connected, its core says that it isn't: %s", core.LastError)
	case l.State == resource.Online:
		d.add(fine, "", "connected%s%s", sinceText(l.Since, now), from(l))
	case core != nil:
		d.add(wrong, connectAdvice(core.LastError), "not connected%s; the core says: %s", sinceText(l.Since, now), orUnknown(core.LastError))
	default:
		d.add(wrong, "is edgecore running, and can it reach the hub? run edgebus doctor on the node, or say with --core where it answers",
			"not connected%s: %s", sinceText(l.Since, now), orUnknown(l.LastError))
	}
	if l.Anomaly != nil {
		at, _ := resource.ParseTime(l.Anomaly.Time)
		advice := "put backups back with edgebus restore: then both sides know, and versions go on rising"
		if l.Anomaly.Reason == resource.LineageLeap {
			advice = "give the node a new certificate or password, unless you know which program that was"
		}
		d.add(look, advice, "%s ago: %s", age(now.Sub(at)), l.Anomaly.Message)
	}
	since, err := resource.ParseTime(l.Since)
	if l.Takeovers >= flapping && err == nil && now.Sub(since) < recently {
		d.add(wrong, "are there two cores with this name? give each its own node.name, and its own certificate",
			"the node's connection was taken over %s by another one of the same name", count(l.Takeovers, "time"))
	}
}

func from(l resource.Link) string {
	if l.Peer == "" {
		return ""
	}
	return ", " + l.Peer
}

func orUnknown(reason string) string {
	if reason == "" {
		return "no connection yet"
	}
	return reason
}

func sinceText(at string, now time.Time) string {
	since, err := resource.ParseTime(at)
	if err != nil {
		return " since before the hub was started"
	}
	return " for " + strings.Replace(age(now.Sub(since)), "now", "less than a second", 1)
}

// connectAdvice is what to do about a connection that can't be made.
func connectAdvice(reason string) string {
	for _, x := range []struct{ has, advice string }{
		{"nor a node that there is", "apply a Node of the name in the certificate at the hub; the core comes in by itself then"},
		{"the certificate is for", "link.tls.cert and node.name in core.yaml belong to two nodes: give this node its own certificate (scripts/certs.sh node), or the name in it"},
		{"bad user name or password", "mend link.user and link.password (or passwordFile) in core.yaml, or auth.users on the hub"},
		{"an http server answers", "link.server is the hub's MQTT address (mqtt.tls.listen in hub.yaml, 8883), not that of its HTTP API: mend it in core.yaml"},
		{"not authorised", "another user has a session with this name: is there a second core, or was its user changed?"},
		{"connection refused", "nothing listens there: is the hub running, is link.server right?"},
		{"no such host", "link.server names a host that DNS doesn't know"},
		{"by an authority that isn't trusted", "give its certificate as link.tls.ca in core.yaml"},
		{"our certificate", "the node's certificate is link.tls.cert in core.yaml, who signs it mqtt.tls.clientCA in hub.yaml; scripts/certs.sh makes new ones"},
		{"the server's certificate", "the hub's certificate is mqtt.tls.cert in hub.yaml; scripts/certs.sh makes a new one"},
		{"address begin", "mend link.server in core.yaml"},
		{"certificate", "check the certificates: link.tls on the node, mqtt.tls on the hub, and the clocks"},
		{"timeout", "the network drops what is sent: a firewall, or a wrong address in link.server"},
		{"deadline", "the network drops what is sent: a firewall, or a wrong address in link.server"},
	} {
		if strings.Contains(strings.ToLower(reason), x.has) {
			return x.advice
		}
	}
	return "can the node reach the address in its link.server?"
}

func (d *diagnosis) rejections(l resource.Link, now time.Time) {
	r := l.Rejected
	if r == nil {
		return
	}
	at, err := resource.ParseTime(r.Time)
	if err != nil || now.Sub(at) > recently {
		return
	}
	m := wrong
	if l.State == resource.Online {
		m = look
	}
	d.add(m, connectAdvice(r.Reason), "the hub refused %s in this node's name, the last %s from %s: %s", count(r.Count, "connection"), strings.Replace(age(now.Sub(at))+" ago", "now ago", "just now", 1), r.Remote, r.Reason)
}

// shape: how good is the link that there is?
func (d *diagnosis) shape(f facts, l resource.Link) {
	switch {
	case l.OtherHub != "":
		this := f.hub
		if this == nil {
			this = f.core
		}
		d.add(wrong, fmt.Sprintf("has this hub lost its data? restore its backup (edgebus restore); is it the wrong hub? mend link.server in core.yaml; "+
			"is it to take the other's place? set replaces: [%s] in hub.yaml, and start it again", l.OtherHub),
			"the node has what %s gave it, and keeps it: this is another hub, %s, and changes nothing on it", l.OtherHub, this.Hub)
	case f.hub != nil:
		d.direction(l, "the node", "the cloud wants")
	}
	if f.core != nil {
		if f.core.Links[0].OverQuota == "" && l.OverQuota == "" { // else it is no matter of time
			d.direction(f.core.Links[0], "the hub", "the node reports")
		}
		d.streams(f.core)
		l.CertificateExpires = firstOf(l.CertificateExpires, f.core.Links[0].CertificateExpires)
	}
	if f.core != nil && l.OverQuota == "" {
		l.OverQuota = f.core.Links[0].OverQuota
	}
	d.owned(f)
	if l.OverQuota != "" {
		d.add(wrong, "delete keys of the node, or raise limits.node on the hub", "the hub takes nothing of what the node reports: %s", l.OverQuota)
	}
	if f.hub != nil && f.core == nil && l.Version != "" && l.Version != f.hub.Version {
		d.add(look, "upgrade the older one", "the hub has version %s, the core %s", f.hub.Version, l.Version)
	}
	at, err := resource.ParseTime(l.CertificateExpires)
	if err != nil {
		return
	}
	const advice = "make a new one: scripts/certs.sh renew"
	switch left := time.Until(at); {
	case left < 0:
		d.add(wrong, advice, "a certificate of the link has expired on %s", l.CertificateExpires)
	case left < certificateOK:
		d.add(look, advice, "a certificate of the link expires in %s", age(left))
	default:
		d.add(fine, "", "the link's certificates are good for another %s", age(left))
	}
}

// owned: is there room for what the node's clients say?
func (d *diagnosis) owned(f facts) {
	if f.core == nil || f.core.Owned == nil {
		return
	}
	o := f.core.Owned
	const advice = "delete keys that nobody needs, or raise limits.node in core.yaml, and on the hub"
	for _, x := range []struct {
		have, most int
		of         string
	}{{o.Keys, o.MostKeys, "keys"}, {o.Bytes, o.MostBytes, "bytes"}} {
		switch {
		case x.most == 0 || float64(x.have) < fullQuota*float64(x.most):
		case x.have >= x.most:
			d.add(wrong, advice, "the node owns %d %s of the %d that it may: what would add to them is refused", x.have, x.of, x.most)
		default:
			d.add(look, advice, "the node owns %d %s of the %d that it may", x.have, x.of, x.most)
		}
	}
	if n := f.core.Refused[string(resource.Quota)]; n > 0 {
		d.add(look, advice, "%s refused for a limit on the node since the core's start; its log names the topics", were(n, "publish"))
	}
}

// were says that something was done to a number of things.
func were(n int64, what string) string {
	if n == 1 {
		return "1 " + what + " was"
	}
	return fmt.Sprintf("%d %ses were", n, what)
}

// streams: what does the core say of telemetry, events and bridged messages?
func (d *diagnosis) streams(core *resource.LinkReport) {
	s := core.Streams
	if s == nil {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(s.Dropped)) {
		if n := s.Dropped[why]; n > 0 && why != "not_linked" { // that is what rules without store are meant to do
			d.add(look, "its log says more; room and age are limits.streams in core.yaml", "%s for the hub were dropped since the core's start: %s", count(int(n), "message"), why)
		}
	}
	if s.Waiting > 0 && s.Seconds > lateSeconds && core.Links[0].State == resource.Online {
		d.add(look, "is link.rate too low, or the network slow?", "%s of streams wait though the link is up, the oldest for %s",
			count(s.Waiting, "message"), age(seconds(s.Seconds)))
	}
	if s.RefusedRules > 0 {
		d.add(wrong, "permit them in bridge.down in hub.yaml; the node's log names them", "the hub refuses %s of the node", count(s.RefusedRules, "bridge rule"))
	}
}

// firstOf is the earlier of two times, of which either may be missing.
func firstOf(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

func (d *diagnosis) direction(l resource.Link, who, what string) {
	b := l.Behind
	switch {
	case b == nil:
		d.add(look, "it is known once the node has connected", "whether %s has all that %s is not known: it has not connected since the hub was started", who, what)
	case l.State == resource.Online && l.InStep:
		d.add(fine, "", "%s has all that %s", who, what)
	case l.State != resource.Online && b.Keys == 0:
		d.add(fine, "", "%s had all that %s", who, what)
	case l.State != resource.Online:
		d.add(look, "they are sent when the link is back", "%s of what %s wait for %s, the oldest for %s", count(b.Keys, "key"), what, who, age(seconds(b.Seconds)))
	case b.Seconds > lateSeconds:
		d.add(wrong, "is the network slow, or the other end's disk? see commit_seconds in /metrics of both", "%s lacks %s of what %s, the oldest for %s", who, count(b.Keys, "key"), what, age(seconds(b.Seconds)))
	default:
		d.add(look, "look again in a moment", "%s is catching up with what %s: %s to go", who, what, count(b.Keys, "key"))
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
