package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// From when on something is a finding.
const (
	lateSeconds   = 30
	clockLook     = 5 * time.Second
	clockWrong    = time.Minute
	certificateOK = 14 * 24 * time.Hour
	recentTime    = 10 * time.Minute
	fullQueue     = 0.8
	fullQuota     = 0.9
	manyTakeovers = 3
)

// diagnose draws the conclusions from the answers. It is a pure function but for the current time.
func diagnose(f facts) nodeDiagnosis {
	d := nodeDiagnosis{Node: f.node, Hub: f.hub, Core: f.core}
	if f.worksAlone() {
		d.diagnoseAlone(f)
		return d
	}
	d.hub(f)
	d.ends(f)
	d.node(f)
	switch {
	case d.Hub == nil && d.Core == nil && f.hubRefused():
		d.Verdict = "can't tell: the hub did not let us in"
	case d.Hub == nil && d.Core == nil:
		d.Verdict = "can't tell: neither hub nor core answers"
	case d.hasMark(markWrong):
		d.Verdict = "something is wrong"
	case d.hubUnasked && f.hubRefused():
		d.Verdict = "can't tell: the hub did not let us in; the core says that it is connected"
	case d.hubUnasked:
		d.Verdict = "can't tell: the hub does not answer; the core says that it is connected"
	case d.hasMark(markLook):
		d.Verdict = "the link is well; look at what is marked !"
	default:
		d.Verdict = "all is well"
	}
	return d
}

// node adds the findings about the node itself, which are the same in the diagnosis of one node and in the list of all.
func (d *nodeDiagnosis) node(f facts) {
	if link := d.link(f); link != nil {
		d.quality(f, *link)
	}
	if c, told := access.FindCondition(f.conditions, resource.ConditionDiskPressure); told && c.Status == "True" && f.core == nil {
		d.add(markLook, "free space on it: when it is full, the node can't store what is published there, and what it is sent", "the node's core: %s", c.Message)
	}
	if c, told := access.FindCondition(f.conditions, resource.ConditionSpecRendered); told && c.Status == "False" {
		d.add(markWrong, "correct what the message names, in the Node, its Fleet, or what they refer to: the node keeps what it was sent before",
			"the node's spec can't be rendered: %s", strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
	}
	d.devices(f)
}

// diagnoseAlone: only the core is looked at. What a hub has of the node's mappers is of the time when they were linked.
func (d *nodeDiagnosis) diagnoseAlone(f facts) {
	d.Hub, f.hub, f.mappers = nil, nil, nil
	d.ends(f)
	d.devices(f)
	d.add(markOK, "", "the node works alone, as its settings say (link.server is empty)")
	d.Verdict = "all is well: the node works alone"
	if d.hasMark(markWrong) || d.hasMark(markLook) {
		d.Verdict = "the node works alone; look at what is marked"
	}
}

// signIn is the advice for a hub's API that requires credentials.
const signIn = "sign in with --cert and --key, with --user and --password-file, or with a context (edgebus context set)"

// hub: does it answer?
func (d *nodeDiagnosis) hub(f facts) {
	if f.hub == nil {
		d.hubUnasked = true
		m := markWrong
		if f.core != nil && f.core.Links[0].State == resource.Online {
			m = markLook // its API may not be reachable from this machine by design
		}
		if f.hubRefused() {
			d.add(m, signIn, "the hub at %s did not let us in: %v", f.hubAt, f.hubErr)
			return
		}
		d.add(m, "is cloudhub running, and its HTTP address right? say where it is with --hub", "the hub does not answer at %s: %v", f.hubAt, f.hubErr)
		return
	}
	d.add(markOK, "", "the hub answers at %s (version %s)", f.hubAt, f.hub.Version)
	var refused *client.Refused
	switch {
	case errors.As(f.mqttErr, &refused):
		d.add(markLook, "sign in with --user and --password-file", "the hub's MQTT did not let us in: %v", f.mqttErr)
	case errors.Is(f.mqttErr, resource.Invalid):
		d.add(markLook, "say with --server where it is", "the hub's MQTT was not asked: %v", f.mqttErr)
	case f.mqttErr != nil:
		d.add(markWrong, "does the hub listen there? say where with --server; see mqtt in hub.yaml", "the hub's MQTT does not answer at %s: %v", f.mqttAt, f.mqttErr)
	}
}

// ends: do both programs work?
func (d *nodeDiagnosis) ends(f facts) {
	if f.core != nil {
		d.add(markOK, "", "the core answers at %s (version %s)", f.coreAt, f.core.Version)
	}
	d.addIf(f.core == nil && f.coreGiven, markWrong, "is edgecore running there?", "the core does not answer at %s: %v", f.coreAt, f.coreErr)
	for _, r := range []*resource.LinkReport{f.hub, f.core} {
		if r == nil {
			continue
		}
		d.addIf(r.Gone != "", markWrong, "what it acknowledged may be lost; it refuses messages that it would have to store: restore a backup (edgebus restore)",
			"%s has lost its files: %s", r.Program, r.Gone)
		d.addIf(r.Short != "", markWrong, "raise its limit of open files (LimitNOFILE= of its unit, ulimit -n), or stop the clients that hold so many connections",
			"%s refuses new connections: %s, the rest are kept for its own work", r.Program, r.Short)
		d.addIf(r.LowSpace != "", markLook, "free space on it, or move data.dir to a larger disk: when it is full, writes are refused", "%s: %s", r.Program, r.LowSpace)
		if o := r.ForeignOrigin; o != nil {
			at, err := resource.ParseTime(o.Time)
			now, _ := resource.ParseTime(r.Now)
			d.addIf(err == nil && now.Sub(at) < recentTime, markLook, "if that page is yours, list the origin in mqtt.websocket.origins: its browser tells it nothing",
				"%s refused a web page of %s at its listener %s, %s ago", r.Program, o.Origin, o.Listener, ageInSentence(now.Sub(at)))
		}
		d.addIf(r.Rules != "", markLook, "correct the file (auth.topics): it is read again when it changes",
			"%s uses older rules for users' own topics than its file has now: %s", r.Program, r.Rules)
		for _, store := range slices.Sorted(maps.Keys(r.Failing)) {
			d.add(markWrong, "free space on its disk, or repair it; the program then continues by itself", "%s can't store (%s): %s", r.Program, store, r.Failing[store])
		}
		for _, store := range slices.Sorted(maps.Keys(r.Damaged)) {
			d.add(markWrong, "it works until it is stopped, and will not start again with these files: restore a backup (edgebus restore)", "%s has damaged files (%s): %s",
				r.Program, store, r.Damaged[store])
		}
		d.addIf(r.FullestQueue > fullQueue, markLook, "the client is offline or slow: when its queue is full, messages for it are dropped (limits.session)",
			"the queue of client %q on %s is %.0f %% full", r.FullestOf, r.Program, 100*r.FullestQueue)
		d.addIf(r.Missed > 0, markLook, "its log names the clients, which are offline or slow: connect them, end their sessions (edgebus session end), or raise limits.session",
			"%s had no room for %d messages in sessions, and dropped them (edgebus session list: missed)", r.Program, r.Missed)
	}
	d.addIf(f.hub != nil && f.core != nil && f.hub.Version != f.core.Version, markLook, "upgrade the older one",
		"the hub has version %s, the core %s", f.version(f.hub), f.version(f.core))
	d.clocks(f)
}

// clocks compares the clocks: by the times that both report now, or by what the node told the hub last.
func (d *nodeDiagnosis) clocks(f facts) {
	var ahead time.Duration
	switch {
	case f.hub != nil && f.core != nil:
		hub, err1 := resource.ParseTime(f.hub.Now)
		core, err2 := resource.ParseTime(f.core.Now)
		if err1 != nil || err2 != nil {
			return
		}
		ahead = core.Sub(hub) - f.coreTime.Sub(f.hubTime)
	case f.hub != nil && len(f.hub.Links) > 0 && f.hub.Links[0].ClockAhead != nil:
		ahead = time.Duration(*f.hub.Links[0].ClockAhead * float64(time.Second))
	default:
		return
	}
	how := "ahead of"
	if ahead < 0 {
		how = "behind"
	}
	const advice = "run NTP on both: times of values, validUntil and certificates depend on it"
	switch size := time.Duration(math.Abs(float64(ahead))); {
	case size > clockWrong:
		d.add(markWrong, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	case size > clockLook:
		d.add(markLook, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	default:
		d.add(markOK, "", "the clocks agree")
	}
}

// summariseNodes draws the same conclusions about each node as diagnose, and keeps the worst finding of each.
func summariseNodes(r resource.LinkReport, nodes []facts) nodesSummary {
	d := &nodeDiagnosis{}
	hub := r
	hub.Links = nil // findings about a node are its own
	d.ends(facts{hub: &hub})
	s := nodesSummary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == markOK }), More: r.More}
	for _, f := range nodes {
		d := &nodeDiagnosis{}
		d.node(f)
		worst := slices.MaxFunc(d.Findings, func(a, b finding) int { return cmp.Compare(a.Mark.severity(), b.Mark.severity()) })
		s.Links = append(s.Links, nodeSummary{f.node, worst.Mark, worst.Text, f.hub.Links[0]})
	}
	slices.SortStableFunc(s.Links, func(a, b nodeSummary) int { return cmp.Compare(b.Mark.severity(), a.Mark.severity()) })
	return s
}

// devices: do the mappers run, and have the devices the values that are desired?
func (d *nodeDiagnosis) devices(f facts) {
	away := keysWith(f.mappers, func(state string) bool { return state != resource.Online })
	if len(away) > 0 {
		d.add(markWrong, "start them on the node; their logs say why they ended", "mappers that are not running: %s", printer.FirstNames(away))
	}
	if len(f.devices) == 0 {
		return
	}
	before := len(d.Findings)
	d.notOnline(f)
	var waiting, refused, unread, conflicts, overridden, noModel []string
	for _, x := range f.devices {
		name := x.Metadata.Name
		for _, c := range x.Status.Conditions {
			switch {
			case c.Type == "InSync" && c.Reason == "ModelMissing":
				noModel = append(noModel, name+" (DeviceModel "+x.Spec.DeviceModelRef.Name+")")
			case c.Type == "InSync" && c.Status == "False" && c.Reason != resource.ReasonRefused:
				instead, waits := overriddenOrWaiting(x.Status.Twin)
				if waits {
					waiting = append(waiting, name)
				}
				if len(instead) > 0 {
					overridden = append(overridden, name+" ("+strings.Join(instead, "; ")+")")
				}
			case c.Type == "Refused" && c.Status == "True":
				refused = append(refused, name+" ("+c.Message+")")
			case c.Type == resource.ConditionReadable && c.Status == "False":
				unread = append(unread, name+" ("+c.Message+")")
			case c.Type == "TwinConflict" && c.Status == "True":
				conflicts = append(conflicts, name+" ("+c.Message+")")
			}
		}
	}
	d.list(markWrong, noModel, "create it", "devices whose model does not exist: %s")
	d.list(markWrong, unread, "does the device have them? correct its model (propertyVisitors), or repair the device; its mapper keeps trying",
		"devices with values that can't be read: %s")
	d.list(markLook, waiting, "the mapper applies it when the device is online", "devices that are not as they should be yet: %s")
	d.list(markLook, overridden, "clear the override there, with an empty value; for the desired value to win, clear it and set it again: edgebus twin set DEVICE PROPERTY=",
		"values that are overridden on the node: %s")
	d.list(markLook, refused, "set a value that the device accepts, or none: edgebus twin set DEVICE PROPERTY= (after that the same value can be set again)", "values that devices refused: %s")
	d.list(markLook, conflicts, "publish the right value, on either side", "values that cloud and node disagree about: %s")
	if len(d.Findings) > before {
		return
	}
	what := printer.Plural(len(f.devices), "device")
	if l := f.hubLink(); f.hub != nil && l.State != resource.Online {
		now, _ := resource.ParseTime(f.hub.Now)
		d.add(markLook, "it is known again when the node is back", "%s: their state is not known since the node disconnected; not connected%s", what, sinceText(l.Since, now))
		return
	}
	d.add(markOK, "", "%s, all online and as they should be", what)
}

// overriddenOrWaiting returns the overrides on the node that stand before desired values, and whether other values are still to be applied.
// Refusals and conflicts are findings of their own.
func overriddenOrWaiting(twin map[string]resource.TwinProperty) (instead []string, waits bool) {
	waits = len(twin) == 0
	for _, p := range slices.Sorted(maps.Keys(twin)) {
		switch t := twin[p]; {
		case t.InSync, t.Local && t.Reported == nil, t.Refused != nil, t.Conflict != nil && t.Conflict.Winner == "override":
		case t.Override != nil:
			instead = append(instead, p+": "+terminal.Printable(t.Override.Value, 40)+", by "+terminal.Printable(t.Override.Origin, 40))
		default:
			waits = true
		}
	}
	return instead, waits
}

// offlineReason lists the devices that are not online, by reason.
func (d *nodeDiagnosis) notOnline(f facts) {
	type cause struct{ reason, message string }
	by := map[cause][]string{}
	for _, x := range f.devices {
		c, told := access.FindCondition(x.Status.Conditions, resource.ConditionOnline)
		switch {
		case !told && x.Status.State != resource.Online, told && c.Status != "True":
			by[cause{c.Reason, c.Message}] = append(by[cause{c.Reason, c.Message}], x.Metadata.Name)
		}
	}
	if up := keysWith(f.mappers, func(state string) bool { return state == resource.Online }); len(by) > 0 && len(up) > 0 {
		d.add(markOK, "", "mappers that are running: %s", printer.FirstNames(up))
	}
	causes := slices.SortedFunc(maps.Keys(by), func(a, b cause) int { return strings.Compare(by[a][0], by[b][0]) })
	for _, c := range causes {
		m, advice := f.aboutOffline(c.reason)
		switch {
		case advice == "": // another finding says it
		case c.message == "":
			d.add(m, advice, "devices that are not online: %s", printer.FirstNames(by[c]))
		default:
			d.add(m, advice, "devices that are not online: %s (%s)", printer.FirstNames(by[c]), c.message)
		}
	}
}

// aboutOffline says how bad a reason for not being online is, and what to do. There is no advice if another finding says it.
func (f facts) aboutOffline(reason string) (m mark, advice string) {
	switch reason {
	case resource.ReasonAway, resource.ReasonNoNode, "ModelMissing":
		return markOK, ""
	case resource.ReasonNoSuch:
		return markWrong, "correct spec.nodeName of the Device, or start a core with this name (node.name)"
	case resource.BadConfig:
		return markWrong, "correct the Device or its DeviceModel: its mapper tries again when one of them changes"
	case resource.ReasonNotHeard:
		return markLook, "look again in a moment; if it stays so, check that the mapper may publish for the device: auth.users in core.yaml"
	case resource.ReasonNoMapper:
		const advice = "start a mapper for the device's protocol on the node, or correct its spec.protocol.type"
		if len(keysWith(f.mappers, func(state string) bool { return state == resource.Online })) == 0 {
			return markLook, advice // a client other than a mapper may publish its values
		}
		return markWrong, advice
	}
	return markLook, "is it switched on, is its address right? its mapper keeps trying"
}

func keysWith(m map[string]string, is func(string) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if is(m[name]) {
			names = append(names, name)
		}
	}
	return names
}

// link: is the node connected? It returns the link as the hub sees it, else as the core does; nil if neither knows the node.
func (d *nodeDiagnosis) link(f facts) *resource.Link {
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
	if f.unknown() {
		if core != nil && core.State != resource.Online { // the cause is listed first
			d.add(markWrong, connectAdvice(core.LastError), "the core is not connected to %s: %s", core.Peer, cmp.Or(core.LastError, noConnection))
		}
		switch {
		case len(f.waiting) > 0:
			d.add(markWrong, "compare the fingerprint of its key with the one that edgecore join shows", "%s", access.WaitingText(f.node, f.waiting))
		case f.joined != "":
			d.add(markWrong, "start edgecore on the node; its log says why it can't connect", "node %s joined on %s, and has not connected since the hub was started", f.node, f.joined)
		default:
			d.add(markWrong, "check node.name and link.server in its core.yaml; `edgebus doctor` lists the nodes there are", "the hub has never heard of a node %s%s", f.node, f.similar)
		}
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

const noConnection = "no connection yet"

// state: connected, and since when?
func (d *nodeDiagnosis) state(l resource.Link, core *resource.Link, now time.Time) {
	switch {
	case l.State == resource.Online && core != nil && core.State != resource.Online:
		d.add(markWrong, "the connection is broken, which the hub notices within one and a half keep-alives",
			"the hub has the node as connected, its core says that it isn't: %s", core.LastError)
	case l.State == resource.Online:
		peer := ""
		if l.Peer != "" {
			peer = ", " + l.Peer
		}
		d.connected(l, "connected"+sinceText(l.Since, now)+peer, now)
	case core != nil:
		d.add(markWrong, connectAdvice(core.LastError), "not connected%s; the core says: %s", sinceText(l.Since, now), cmp.Or(core.LastError, noConnection))
	default:
		d.add(markWrong, "is edgecore running, and can it reach the hub? run edgebus doctor on the node, or say with --core where it answers",
			"not connected%s: %s", sinceText(l.Since, now), cmp.Or(l.LastError, noConnection))
	}
	if l.Anomaly != nil {
		at, _ := resource.ParseTime(l.Anomaly.Time)
		advice := "restore backups with edgebus restore, which tells both sides and keeps versions rising"
		if l.Anomaly.Reason == resource.LineageLeap {
			advice = "give the node a new certificate or password, unless you know which program used its name"
		}
		d.add(markLook, advice, "%s ago: %s", printer.Age(now.Sub(at)), l.Anomaly.Message)
	}
	since, err := resource.ParseTime(l.Since)
	if l.Takeovers >= manyTakeovers && err == nil && now.Sub(since) < recentTime {
		d.add(markWrong, "are there two cores with this name? give each its own node.name, and its own certificate",
			"the node's connection was taken over %s by another one with the same name", printer.Plural(l.Takeovers, "time"))
	}
}

// connected says when the node was last heard of: a line that was cut is noticed after one and a half keep-alives only.
func (d *nodeDiagnosis) connected(l resource.Link, text string, now time.Time) {
	at, err := resource.ParseTime(l.LastSeen)
	if err != nil {
		d.add(markOK, "", "%s", text)
		return
	}
	silent := max(now.Sub(at), 0)
	text += ", last heard of " + strings.Replace(printer.Age(silent)+" ago", "now ago", "just now", 1)
	if keepAlive := durationOfSeconds(l.KeepAlive); keepAlive > 0 && silent > keepAlive+time.Second {
		d.add(markLook, "look again in a moment: a connection that is broken is given up after one and a half keep-alives",
			"%s: that is longer than its keep-alive of %s", text, keepAlive)
		return
	}
	d.add(markOK, "", "%s", text)
}

func sinceText(at string, now time.Time) string {
	since, err := resource.ParseTime(at)
	if err != nil {
		return " since before the hub was started"
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

func (d *nodeDiagnosis) rejections(l resource.Link, now time.Time) {
	r := l.Rejected
	if r == nil {
		return
	}
	at, err := resource.ParseTime(r.Time)
	if err != nil || now.Sub(at) > recentTime {
		return
	}
	m := markWrong
	if l.State == resource.Online {
		m = markLook
	}
	d.add(m, connectAdvice(r.Reason), "the hub refused %s in this node's name, the last %s from %s: %s", printer.Plural(r.Count, "connection"), strings.Replace(printer.Age(now.Sub(at))+" ago", "now ago", "just now", 1), r.Remote, r.Reason)
}

// quality: how good is the link?
func (d *nodeDiagnosis) quality(f facts, l resource.Link) {
	switch {
	case l.OtherHub != "":
		this := f.hub
		if this == nil {
			this = f.core
		}
		d.add(markWrong, fmt.Sprintf("has this hub lost its data? restore its backup (edgebus restore); is it the wrong hub? correct link.server in core.yaml; "+
			"does it replace the other? set replaces: [%s] in hub.yaml, and start it again", l.OtherHub),
			"the node has what %s gave it, and keeps it: this is another hub, %s, and changes nothing on it", l.OtherHub, this.Hub)
	case f.hub != nil:
		d.direction(l, "the node", "the cloud wants")
	}
	if f.core != nil {
		if f.core.Links[0].OverQuota == "" && l.OverQuota == "" { // otherwise waiting does not help
			d.direction(f.core.Links[0], "the hub", "the node reports")
		}
		d.streams(f.core)
		if at := f.core.Links[0].CertificateExpires; l.CertificateExpires == "" || at != "" && at < l.CertificateExpires {
			l.CertificateExpires = at
		}
		l.RenewalError, l.RenewalFails = f.core.Links[0].RenewalError, f.core.Links[0].RenewalFails // which is newer than what the hub knows
		l.OverQuota = cmp.Or(l.OverQuota, f.core.Links[0].OverQuota)
	}
	since := ""
	if l.RenewalFails != "" {
		since = ", since " + l.RenewalFails
	}
	d.addIf(l.RenewalError != "", markLook, "it is tried again; the hub's log may say why it was refused", "the node's certificate could not be renewed%s: %s", since, l.RenewalError)
	for _, program := range l.Stopped {
		d.add(markWrong, "start it on the node: systemctl start "+program+"; its log says why it ended: journalctl -u "+program, "%s does not run", program)
	}
	d.addIf(l.SpecFailed != "", markWrong, "mend the cause; then a full disk or the like is tried again by itself, and everything else with: kubectl annotate --overwrite node "+d.Node+" "+resource.RetryAnnotation+"=$(date +%s)",
		"the node's agent could not apply its spec: %s", l.SpecFailed)
	d.owned(f)
	d.addIf(l.OverQuota != "", markWrong, "delete keys of the node, or raise limits.node on the hub", "the hub accepts nothing that the node reports: %s", l.OverQuota)
	d.addIf(f.hub != nil && f.core == nil && l.Version != "" && l.Version != f.version(f.hub), markLook, "upgrade the older one",
		"the hub has version %s, the core %s", f.version(f.hub), l.Version)
	at, err := resource.ParseTime(l.CertificateExpires)
	if err != nil {
		return
	}
	const advice = "make a new one: scripts/certs.sh renew; of a node that has joined: edgebus invite, and edgecore join with what it prints"
	switch left := time.Until(at); {
	case left < 0:
		d.add(markWrong, advice, "a certificate of the link has expired on %s", l.CertificateExpires)
	case left < certificateOK:
		d.add(markLook, advice, "a certificate of the link expires in %s, on %s", printer.Age(left), l.CertificateExpires)
	default:
		d.add(markOK, "", "the link's certificates are good for another %s, until %s", printer.Age(left), l.CertificateExpires)
	}
}

// owned: is there room for what is published on the node?
func (d *nodeDiagnosis) owned(f facts) {
	if f.core == nil || f.core.Owned == nil {
		return
	}
	o := f.core.Owned
	const advice = "delete keys that are not needed, or raise limits.node in core.yaml and on the hub"
	for _, x := range []struct {
		have, most int
		of         string
	}{{o.Keys, o.MostKeys, "keys"}, {o.Bytes, o.MostBytes, "bytes"}} {
		switch {
		case x.most == 0 || float64(x.have) < fullQuota*float64(x.most):
		case x.have >= x.most:
			d.add(markWrong, advice, "the node owns %d %s of the %d that it may: more are refused", x.have, x.of, x.most)
		default:
			d.add(markLook, advice, "the node owns %d %s of the %d that it may", x.have, x.of, x.most)
		}
	}
	n := f.core.Refused[string(resource.Quota)]
	d.addIf(n > 0, markLook, advice, "%d publishes were refused for a limit on the node since the core's start; its log names the topics", n)
}

// streams: do telemetry, events and bridged messages reach the hub?
func (d *nodeDiagnosis) streams(core *resource.LinkReport) {
	s := core.Streams
	if s == nil {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(s.Dropped)) {
		if n := s.Dropped[why]; n > 0 && why != "not_linked" { // as rules without store are meant to
			since := "the core's start"
			if why == "full" {
				since = "its queue of streams began"
			}
			d.add(markLook, "its log says more; room and age are limits.streams in core.yaml", "%s for the hub were dropped since %s: %s", printer.Plural(int(n), "message"), since, why)
		}
	}
	d.addIf(s.Waiting > 0 && s.Seconds > lateSeconds && core.Links[0].State == resource.Online, markLook, "is link.rate too low, or the network slow?",
		"%s of streams wait though the link is up, the oldest for %s", printer.Plural(s.Waiting, "message"), printer.Age(durationOfSeconds(s.Seconds)))
	d.addIf(s.RefusedRules > 0, markWrong, "permit them in bridge.down in hub.yaml; the node's log names them",
		"the hub refuses %s of the node", printer.Plural(s.RefusedRules, "bridge rule"))
}

func (d *nodeDiagnosis) direction(l resource.Link, who, what string) {
	b := l.Behind
	switch {
	case b == nil:
		d.add(markLook, "it is known once the node has connected", "whether %s has all that %s is not known: it has not connected since the hub started", who, what)
	case l.State == resource.Online && l.InStep:
		d.add(markOK, "", "%s has all that %s", who, what)
	case l.State != resource.Online && b.Keys == 0:
		d.add(markOK, "", "%s had all that %s", who, what)
	case l.State != resource.Online:
		d.add(markLook, "they are sent when the link is back", "to be sent to %s: %s that %s, the oldest for %s", who, printer.Plural(b.Keys, "key"), what, ageInSentence(durationOfSeconds(b.Seconds)))
	case b.Seconds > lateSeconds:
		d.add(markWrong, "is the network slow, or the other end's disk? see commit_seconds in /metrics of both", "%s lacks %s that %s, the oldest for %s", who, printer.Plural(b.Keys, "key"), what, ageInSentence(durationOfSeconds(b.Seconds)))
	default:
		d.add(markLook, "look again in a moment", "%s is catching up with what %s: %s to go", who, what, printer.Plural(b.Keys, "key"))
	}
}

// ageInSentence is an age as it stands in a sentence.
func ageInSentence(d time.Duration) string {
	return strings.Replace(printer.Age(d), "now", "less than a second", 1)
}

func durationOfSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
