// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkLink: is the node connected?
func checkLink(d *NodeDiagnosis, f Facts) {
	var core *resource.Link
	if f.Core != nil {
		core = &f.Core.Links[0]
	}
	if f.Hub == nil {
		if core != nil {
			d.state(*core, core, time.Now())
		}
		return
	}
	now, _ := resource.ParseTime(f.Hub.Now)
	if !f.Unknown() {
		d.state(f.Hub.Links[0], core, now)
	} else {
		d.unknown(f, core)
	}
	d.rejections(f.hubLink(), now)
}

// unknown: why has the hub never heard of the node?
func (d *NodeDiagnosis) unknown(f Facts, core *resource.Link) {
	if core != nil && core.State != resource.Online { // the cause is listed first
		d.add(MarkWrong, connectAdvice(core.LastError), "the core is not connected to %s: %s", core.Peer, cmp.Or(core.LastError, noConnection))
	}
	switch {
	case len(f.Waiting) > 0:
		d.add(MarkWrong, "compare the fingerprint of its key with the one that edgecore join shows", "%s", printer.WaitingText(f.Node, f.Waiting))
	case f.Joined != "":
		d.add(MarkWrong, "start edgecore on the node; its log says why it can't connect", "node %s joined on %s, and has not connected since the hub was started", f.Node, f.Joined)
	default:
		d.add(MarkWrong, "check node.name and link.server in its core.yaml; `edgebus doctor` lists the nodes there are", "the hub has never heard of a node %s%s", f.Node, f.Similar)
	}
}

const noConnection = "no connection yet"

// state: connected, and since when?
func (d *NodeDiagnosis) state(l resource.Link, core *resource.Link, now time.Time) {
	switch {
	case l.State == resource.Online && core != nil && core.State != resource.Online:
		d.add(MarkWrong, "the connection is broken, which the hub notices within one and a half keep-alives",
			"the hub has the node as connected, its core says that it isn't: %s", core.LastError)
	case l.State == resource.Online:
		peer := ""
		if l.Peer != "" {
			peer = ", " + l.Peer
		}
		d.connected(l, "connected"+sinceText(l.Since, now)+peer, now)
	case core != nil:
		d.add(MarkWrong, connectAdvice(core.LastError), "not connected%s; the core says: %s", sinceText(l.Since, now), cmp.Or(core.LastError, noConnection))
	default:
		d.add(MarkWrong, "is edgecore running, and can it reach the hub? run edgebus doctor on the node, or say with --core where it answers",
			"not connected%s: %s", sinceText(l.Since, now), cmp.Or(l.LastError, noConnection))
	}
	if l.Anomaly != nil {
		at, _ := resource.ParseTime(l.Anomaly.Time)
		advice := "restore backups with edgebus restore, which tells both sides and keeps versions rising"
		if l.Anomaly.Reason == resource.LineageLeap {
			advice = "give the node a new certificate or password, unless you know which program used its name"
		}
		d.add(MarkLook, advice, "%s ago: %s", printer.Age(now.Sub(at)), l.Anomaly.Message)
	}
	since, err := resource.ParseTime(l.Since)
	if l.Takeovers >= manyTakeovers && err == nil && now.Sub(since) < recentTime {
		d.add(MarkWrong, "are there two cores with this name? give each its own node.name, and its own certificate",
			"the node's connection was taken over %s by another one with the same name", printer.Plural(l.Takeovers, "time"))
	}
}

// connected says when the node was last heard of: a line that was cut is noticed after one and a half keep-alives only.
func (d *NodeDiagnosis) connected(l resource.Link, text string, now time.Time) {
	at, err := resource.ParseTime(l.LastSeen)
	if err != nil {
		d.add(MarkOK, "", "%s", text)
		return
	}
	silent := max(now.Sub(at), 0)
	text += ", last heard of " + strings.Replace(printer.Age(silent)+" ago", "now ago", "just now", 1)
	if keepAlive := durationOfSeconds(l.KeepAlive); keepAlive > 0 && silent > keepAlive+time.Second {
		d.add(MarkLook, "look again in a moment: a connection that is broken is given up after one and a half keep-alives",
			"%s: that is longer than its keep-alive of %s", text, keepAlive)
		return
	}
	d.add(MarkOK, "", "%s", text)
}

func sinceText(at string, now time.Time) string {
	since, err := resource.ParseTime(at)
	if err != nil {
		return " since the hub was started"
	}
	return " for " + ageInSentence(now.Sub(since))
}

// connectAdvice is what to do about a connection that can't be made.
func connectAdvice(reason string) string {
	for _, x := range []struct{ has, advice string }{
		{"nor a node that there is", "apply a Node with the certificate's name at the hub; the core then connects by itself"},
		{"the certificate is for", "link.tls.cert and node.name in core.yaml belong to two nodes: give this node its own certificate (scripts/certs.sh node), or the name in it"},
		{"bad user name or password", "correct link.user and link.password (or passwordFile) in core.yaml, or auth.users on the hub"},
		{"an http server answers", "link.server is the hub's MQTT address (mqtt.tls.listen in hub.yaml, 8883), not that of its HTTP API: correct it in core.yaml"},
		{"not authorised", "another user has a session with this name: is there a second core, or was its user changed?"},
		{"connection refused", "nothing listens there: is the hub running, is link.server right?"},
		{"no such host", "link.server names a host that DNS doesn't know"},
		{"by an authority that isn't trusted", "give its certificate as link.tls.ca in core.yaml"},
		{"our certificate", "the node's certificate is link.tls.cert in core.yaml, the authority that signs it is mqtt.tls.clientCA in hub.yaml; scripts/certs.sh makes new ones"},
		{"the server's certificate", "the hub's certificate is mqtt.tls.cert in hub.yaml; scripts/certs.sh makes a new one"},
		{"address begin", "correct link.server in core.yaml"},
		{"certificate", "check the certificates: link.tls on the node, mqtt.tls on the hub, and the clocks"},
		{"timeout", "the network drops the packets: a firewall, or a wrong address in link.server"},
		{"deadline", "the network drops the packets: a firewall, or a wrong address in link.server"},
	} {
		if strings.Contains(strings.ToLower(reason), x.has) {
			return x.advice
		}
	}
	return "can the node reach the address in its link.server?"
}

func (d *NodeDiagnosis) rejections(l resource.Link, now time.Time) {
	r := l.Rejected
	if r == nil {
		return
	}
	at, err := resource.ParseTime(r.Time)
	if err != nil || now.Sub(at) > recentTime {
		return
	}
	m := MarkWrong
	if l.State == resource.Online {
		m = MarkLook
	}
	d.add(m, connectAdvice(r.Reason), "the hub refused %s in this node's name, the last %s from %s: %s", printer.Plural(r.Count, "connection"), strings.Replace(printer.Age(now.Sub(at))+" ago", "now ago", "just now", 1), r.Remote, r.Reason)
}
