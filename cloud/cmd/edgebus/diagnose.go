package main

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
	"github.com/edgebus/edgebus/topics/resource"
)

// mark says how a finding is meant.
type mark string

const (
	fine  mark = "ok"
	look  mark = "look" // nothing is wrong, but somebody should know
	wrong mark = "wrong"
)

func (m mark) badness() int { return slices.Index([]mark{fine, look, wrong}, m) }

func (m mark) sign() string { return map[mark]string{fine: "✓", look: "!", wrong: "✗"}[m] }

// finding is one thing that was looked at.
type finding struct {
	Mark   mark   `json:"mark"`
	What   string `json:"what"`
	Advice string `json:"advice,omitempty"`
}

// diagnosis is all that was found out about a node.
type diagnosis struct {
	Node     string               `json:"node"`
	Verdict  string               `json:"verdict"`
	Findings []finding            `json:"findings"`
	Hub      *resource.LinkReport `json:"hub,omitempty"`
	Core     *resource.LinkReport `json:"core,omitempty"`

	unasked bool // the hub should have answered, and didn't
}

func (d *diagnosis) add(m mark, advice, format string, args ...any) {
	d.Findings = append(d.Findings, finding{m, fmt.Sprintf(format, args...), advice})
}

func (d diagnosis) has(m mark) bool {
	return slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Mark == m })
}

func (d diagnosis) exit() error {
	switch {
	case d.Hub == nil && d.Core == nil:
		return exitCode(2)
	case d.has(wrong):
		return exitCode(1)
	case d.unasked:
		return exitCode(2)
	}
	return nil
}

// When things count as wrong.
const (
	lateSeconds   = 30
	clockLook     = 5 * time.Second
	clockWrong    = time.Minute
	certificateOK = 14 * 24 * time.Hour
	recently      = 10 * time.Minute
	fullQueue     = 0.8
	fullQuota     = 0.9
	flapping      = 3 // takeovers
)

// diagnose draws the conclusions. It asks nobody anything.
func diagnose(f facts) diagnosis {
	d := diagnosis{Node: f.node, Hub: f.hub, Core: f.core}
	if f.alone() {
		d.alone(f)
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
	case d.has(wrong):
		d.Verdict = "something is wrong"
	case d.unasked && f.hubRefused():
		d.Verdict = "can't tell: the hub did not let us in; the core says that it is connected"
	case d.unasked:
		d.Verdict = "can't tell: the hub does not answer; the core says that it is connected"
	case d.has(look):
		d.Verdict = "the link is well; look at what is marked !"
	default:
		d.Verdict = "all is well"
	}
	return d
}

// node is what is told of a node in particular: alone, and among all.
func (d *diagnosis) node(f facts) {
	link := d.link(f)
	if link != nil {
		d.shape(f, *link)
	}
	d.devices(f)
}

// alone says whether the node has no hub by its own settings: what a hub says is of no concern then.
func (f facts) alone() bool { return f.core != nil && f.core.Links[0].State == resource.Alone }

// alone: only the core is looked at.
func (d *diagnosis) alone(f facts) {
	d.Hub, f.hub = nil, nil
	d.ends(f)
	d.devices(f)
	d.add(fine, "", "the node works alone, as its settings say (link.server is empty)")
	d.Verdict = "all is well: the node works alone"
	if d.has(wrong) || d.has(look) {
		d.Verdict = "the node works alone; look at what is marked"
	}
}

// signIn is what to do when the hub's API wants to know who asks.
const signIn = "sign in with --cert and --key, with --user and --password-file, or with a context (edgebus context set)"

// hubRefused says whether the hub answered, but doesn't know us, or doesn't allow it.
func (f facts) hubRefused() bool {
	kind := resource.KindOf(f.hubErr)
	return kind == resource.Unauthorized || kind == resource.Forbidden
}

// hub: does it answer at all?
func (d *diagnosis) hub(f facts) {
	if f.hub == nil {
		d.unasked = true
		m := wrong
		if f.core != nil && f.core.Links[0].State == resource.Online {
			m = look // its API may well be closed from here
		}
		if f.hubRefused() {
			d.add(m, signIn, "the hub at %s did not let us in: %v", f.hubAt, f.hubErr)
			return
		}
		d.add(m, "is cloudhub running, and its HTTP address right? say where it is with --hub", "the hub does not answer at %s: %v", f.hubAt, f.hubErr)
		return
	}
	d.add(fine, "", "the hub answers at %s (version %s)", f.hubAt, f.hub.Version)
	var refused *client.Refused
	switch {
	case errors.As(f.mqttErr, &refused):
		d.add(look, "sign in with --user and --password-file", "the hub's MQTT did not let us in: %v", f.mqttErr)
	case errors.Is(f.mqttErr, resource.Invalid):
		d.add(look, "say with --server where it is", "the hub's MQTT was not asked: %v", f.mqttErr)
	case f.mqttErr != nil:
		d.add(wrong, "does the hub listen there? say where with --server; see mqtt in hub.yaml", "the hub's MQTT does not answer at %s: %v", f.mqttAt, f.mqttErr)
	}
}

// ends: can both programs do their work?
func (d *diagnosis) ends(f facts) {
	if f.core != nil {
		d.add(fine, "", "the core answers at %s (version %s)", f.coreAt, f.core.Version)
	} else if f.coreGiven {
		d.add(wrong, "is edgecore running there?", "the core does not answer at %s: %v", f.coreAt, f.coreErr)
	}
	for _, r := range []*resource.LinkReport{f.hub, f.core} {
		if r == nil {
			continue
		}
		if r.Gone != "" {
			d.add(wrong, "what it acknowledged may be lost, and it refuses what it would have to store", "%s has lost its files: %s", r.Program, r.Gone)
		}
		if r.Short != "" {
			d.add(wrong, "raise its limit (LimitNOFILE= of its unit, ulimit -n), or end the clients that hold so many connections",
				"%s refuses new connections: %s, the rest are kept for its own work", r.Program, r.Short)
		}
		for _, store := range slices.Sorted(maps.Keys(r.Failing)) {
			d.add(wrong, "free space on its disk or mend it; it goes on by itself then", "%s can't store (%s): %s", r.Program, store, r.Failing[store])
		}
		for _, store := range slices.Sorted(maps.Keys(r.Damaged)) {
			d.add(wrong, "it works until it is stopped, and will not start again with these files", "%s has damaged files (%s): %s",
				r.Program, store, r.Damaged[store])
		}
		if r.FullestQueue > fullQueue {
			d.add(look, "the client is away or slow: when it is full, it goes without (limits.session)", "the queue of client %q on %s is %.0f %% full",
				r.FullestOf, r.Program, 100*r.FullestQueue)
		}
		if r.Missed > 0 {
			d.add(look, "its log names the clients, which are away or slow: have them come, or end their sessions, or raise limits.session",
				"%s had no room for %d messages in sessions since its start: those clients go without them", r.Program, r.Missed)
		}
	}
	if f.hub != nil && f.core != nil && f.hub.Version != f.core.Version {
		d.add(look, "upgrade the older one", "the hub has version %s, the core %s", f.hub.Version, f.core.Version)
	}
	d.clocks(f)
}

// clocks: by what both say at the same time, or by what the hub heard of the node last.
func (d *diagnosis) clocks(f facts) {
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
		d.add(wrong, advice, "the node's clock is %s %s the hub's", age(size), how)
	case size > clockLook:
		d.add(look, advice, "the node's clock is %s %s the hub's", age(size), how)
	default:
		d.add(fine, "", "the clocks agree")
	}
}

// summary is all nodes, the worst first.
type summary struct {
	Hub   []finding     `json:"hub"`
	Links []linkSummary `json:"links"`
	More  int           `json:"more,omitempty"`
}

type linkSummary struct {
	Node string        `json:"node"`
	Mark mark          `json:"mark"`
	What string        `json:"what"`
	Link resource.Link `json:"link"`
}

// summarise draws the conclusions about each node as diagnose does, and keeps the worst of each.
func summarise(r resource.LinkReport, nodes []facts) summary {
	d := &diagnosis{}
	hub := r
	hub.Links = nil // what is said of one node is said below
	d.ends(facts{hub: &hub})
	s := summary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == fine }), More: r.More}
	for _, f := range nodes {
		d := &diagnosis{}
		d.node(f)
		worst := slices.MaxFunc(d.Findings, func(a, b finding) int { return cmp.Compare(a.Mark.badness(), b.Mark.badness()) })
		s.Links = append(s.Links, linkSummary{f.node, worst.Mark, worst.What, f.hub.Links[0]})
	}
	slices.SortStableFunc(s.Links, func(a, b linkSummary) int { return cmp.Compare(b.Mark.badness(), a.Mark.badness()) })
	return s
}

func (s summary) exit() error {
	bad := func(m mark) bool { return m == wrong }
	if slices.ContainsFunc(s.Hub, func(f finding) bool { return bad(f.Mark) }) ||
		slices.ContainsFunc(s.Links, func(l linkSummary) bool { return bad(l.Mark) }) {
		return exitCode(1)
	}
	return nil
}

// devices: what stands between wishes and devices?
func (d *diagnosis) devices(f facts) {
	away := keysWith(f.mappers, func(state string) bool { return state != resource.Online })
	if len(away) > 0 {
		d.add(wrong, "start it on the node; its log says why it ended", "mappers that are not running: %s", some(away))
	}
	if len(f.devices) == 0 {
		return
	}
	before := len(d.Findings)
	d.notOnline(f)
	var waiting, refused, unread, disputed, overridden, orphans []string
	for _, x := range f.devices {
		name := x.Metadata.Name
		for _, c := range x.Status.Conditions {
			switch {
			case c.Type == "InSync" && c.Reason == "ModelMissing":
				orphans = append(orphans, name+" (DeviceModel "+x.Spec.DeviceModelRef.Name+")")
			case c.Type == "InSync" && c.Status == "False" && c.Reason != resource.ReasonRefused:
				instead, waits := behind(x.Status.Twin)
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
				disputed = append(disputed, name+" ("+c.Message+")")
			}
		}
	}
	d.list(wrong, orphans, "create it", "devices whose model does not exist: %s")
	d.list(wrong, unread, "does the device have them? mend how its model reaches them (propertyVisitors), or the device; its mapper goes on trying",
		"devices with values that can't be read: %s")
	d.list(look, waiting, "the mapper applies it when the device is online", "devices that are not as they should be yet: %s")
	d.list(look, overridden, "clear it there, with an empty value; to have the wish win, take it back and set it again: edgebus twin set DEVICE PROPERTY=",
		"values that are overridden on the node: %s")
	d.list(look, refused, "wish for a value that the device can take, or for none: edgebus twin set DEVICE PROPERTY= (after that, also for the same again)", "values that devices refused: %s")
	d.list(look, disputed, "publish the value that you mean, on either side", "values that cloud and node disagree about: %s")
	if len(d.Findings) > before {
		return
	}
	what := count(len(f.devices), "device")
	if l := f.hubLink(); f.hub != nil && l.State != resource.Online {
		now, _ := resource.ParseTime(f.hub.Now)
		d.add(look, "it is told when the node is back", "%s: how they are is not known since the node left; not connected%s", what, sinceText(l.Since, now))
		return
	}
	d.add(fine, "", "%s, all online and as they should be", what)
}

// hubLink is the hub's end of the link.
func (f facts) hubLink() (l resource.Link) {
	if f.hub != nil && len(f.hub.Links) > 0 {
		l = f.hub.Links[0]
	}
	return l
}

// behind is what was set on the node instead of what is wanted, and whether anything else is waited for.
// Refusals and conflicts are told of as such.
func behind(twin map[string]resource.TwinProperty) (instead []string, waits bool) {
	waits = len(twin) == 0
	for _, p := range slices.Sorted(maps.Keys(twin)) {
		switch t := twin[p]; {
		case t.InSync, t.Local && t.Reported == nil, t.Refused != nil, t.Conflict != nil && t.Conflict.Winner == "override":
		case t.Override != nil:
			instead = append(instead, p+": "+printable(t.Override.Value, 40)+", by "+printable(t.Override.Origin, 40))
		default:
			waits = true
		}
	}
	return instead, waits
}

// notOnline names the devices that aren't, those with the same reason together.
func (d *diagnosis) notOnline(f facts) {
	type cause struct{ reason, message string }
	by := map[cause][]string{}
	for _, x := range f.devices {
		c, told := onlineOf(x)
		switch {
		case !told && x.Status.State != resource.Online, told && c.Status != "True":
			by[cause{c.Reason, c.Message}] = append(by[cause{c.Reason, c.Message}], x.Metadata.Name)
		}
	}
	if up := keysWith(f.mappers, func(state string) bool { return state == resource.Online }); len(by) > 0 && len(up) > 0 {
		d.add(fine, "", "mappers that are running: %s", some(up))
	}
	causes := slices.SortedFunc(maps.Keys(by), func(a, b cause) int { return strings.Compare(by[a][0], by[b][0]) })
	for _, c := range causes {
		m, advice := f.aboutOffline(c.reason)
		switch {
		case advice == "": // said where it belongs
		case c.message == "":
			d.add(m, advice, "devices that are not online: %s", some(by[c]))
		default:
			d.add(m, advice, "devices that are not online: %s (%s)", some(by[c]), c.message)
		}
	}
}

func onlineOf(x resource.Device) (c resource.Condition, told bool) {
	i := slices.IndexFunc(x.Status.Conditions, func(c resource.Condition) bool { return c.Type == resource.ConditionOnline })
	if i < 0 {
		return c, false
	}
	return x.Status.Conditions[i], true
}

// aboutOffline is how bad a reason is for which a device isn't online, and what to do; nothing, if
// something else is said of it.
func (f facts) aboutOffline(reason string) (m mark, advice string) {
	switch reason {
	case resource.ReasonAway, resource.ReasonNoNode, "ModelMissing":
		return fine, ""
	case resource.ReasonNoSuch:
		return wrong, "mend spec.nodeName of the Device, or start a core with this name (node.name)"
	case resource.BadConfig:
		return wrong, "mend the Device or its DeviceModel: its mapper tries again when it changes"
	case resource.ReasonNotHeard:
		return look, "look again in a moment; if it stays so, may the mapper speak for it? see auth.users in core.yaml"
	case resource.ReasonNoMapper:
		const advice = "start a mapper that speaks the device's protocol on the node, or mend its spec.protocol.type"
		if len(keysWith(f.mappers, func(state string) bool { return state == resource.Online })) == 0 {
			return look, advice // it may be meant to be spoken for by hand
		}
		return wrong, advice
	}
	return look, "is it switched on, is its address right? its mapper goes on trying"
}

func (d *diagnosis) list(m mark, names []string, advice, format string) {
	if len(names) > 0 {
		d.add(m, advice, format, some(names))
	}
}

func keysWith(m map[string]string, is func(string) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if is(m[name]) {
			names = append(names, name)
		}
	}
	return names
}

// some are the first few of a list.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// count is a number of things, in words.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

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
