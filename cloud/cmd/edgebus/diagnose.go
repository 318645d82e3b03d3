package main

import (
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
	link := d.link(f)
	if link != nil {
		d.shape(f, *link)
	}
	d.devices(f)
	switch {
	case d.Hub == nil && d.Core == nil:
		d.Verdict = "can't tell: neither hub nor core answers"
	case d.has(wrong):
		d.Verdict = "something is wrong"
	case d.has(look):
		d.Verdict = "the link is well; look at what is marked !"
	default:
		d.Verdict = "all is well"
	}
	return d
}

// alone says whether the node has no hub by its own settings: what a hub says is of no concern then.
func (f facts) alone() bool { return f.core != nil && f.core.Links[0].State == resource.Alone }

// alone: only the core is looked at.
func (d *diagnosis) alone(f facts) {
	d.Hub, f.hub = nil, nil
	d.ends(f)
	d.add(fine, "", "the node works alone, as its settings say (link.server is empty)")
	d.Verdict = "all is well: the node works alone"
	if d.has(wrong) || d.has(look) {
		d.Verdict = "the node works alone; look at what is marked"
	}
}

// hub: does it answer at all?
func (d *diagnosis) hub(f facts) {
	if f.hub == nil {
		m := wrong
		if f.core != nil && f.core.Links[0].State == resource.Online {
			m = look // its API may well be closed from here
		}
		d.add(m, "is cloudhub running, and its HTTP address right? say where it is with --hub", "the hub does not answer at %s: %v", f.hubAt, f.hubErr)
		return
	}
	d.add(fine, "", "the hub answers at %s (version %s)", f.hubAt, f.hub.Version)
	var refused *client.Refused
	switch {
	case errors.As(f.mqttErr, &refused):
		d.add(look, "sign in with --user and --password-file", "the hub's MQTT did not let us in: %v", f.mqttErr)
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
		for _, store := range slices.Sorted(maps.Keys(r.Failing)) {
			d.add(wrong, "free space on its disk or mend it; it goes on by itself then", "%s can't store (%s): %s", r.Program, store, r.Failing[store])
		}
		for _, store := range slices.Sorted(maps.Keys(r.Damaged)) {
			d.add(wrong, "it works until it is stopped, and will not start again with these files", "%s has damaged files (%s): %s",
				r.Program, store, r.Damaged[store])
		}
		if r.FullestQueue > fullQueue {
			d.add(look, "a client is away or slow: see edgebus_broker_waiting_messages, and limits.session", "a queue of %s is %.0f %% full", r.Program, 100*r.FullestQueue)
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
		d.add(wrong, "check node.name and link.server in its core.yaml; `edgebus doctor` lists the nodes there are", "the hub has never heard of a node %s", f.node)
		if core != nil {
			d.add(wrong, "", "the core can't connect to %s: %s", core.Peer, core.LastError)
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
	since, err := resource.ParseTime(l.Since)
	if l.Takeovers >= flapping && err == nil && now.Sub(since) < recently {
		d.add(wrong, "are there two cores with this name? give each its own node.name, and its own certificate",
			"the node's connection was taken over %d times by another one of the same name", l.Takeovers)
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
		{"bad user name or password", "mend link.user and link.password (or passwordFile) in core.yaml, or auth.users on the hub"},
		{"not authorised", "another user has a session with this name: is there a second core, or was its user changed?"},
		{"connection refused", "nothing listens there: is the hub running, is link.server right?"},
		{"no such host", "link.server names a host that DNS doesn't know"},
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
	d.add(m, connectAdvice(r.Reason), "the hub refused %d connections in this node's name, the last %s ago from %s: %s", r.Count, age(now.Sub(at)), r.Remote, r.Reason)
}

// shape: how good is the link that there is?
func (d *diagnosis) shape(f facts, l resource.Link) {
	if f.hub != nil {
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
	const advice = "make a new one: scripts/certs.sh"
	switch left := time.Until(at); {
	case left < 0:
		d.add(wrong, advice, "a certificate of the link has expired on %s", l.CertificateExpires)
	case left < certificateOK:
		d.add(look, advice, "a certificate of the link expires in %s", age(left))
	default:
		d.add(fine, "", "the link's certificates are good for another %s", age(left))
	}
}

// streams: what does the core say of telemetry, events and bridged messages?
func (d *diagnosis) streams(core *resource.LinkReport) {
	s := core.Streams
	if s == nil {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(s.Dropped)) {
		if n := s.Dropped[why]; n > 0 && why != "not_linked" { // that is what rules without store are meant to do
			d.add(look, "its log says more; room and age are limits.streams in core.yaml", "%d messages for the hub were dropped since the core's start: %s", n, why)
		}
	}
	if s.Waiting > 0 && s.Seconds > lateSeconds && core.Links[0].State == resource.Online {
		d.add(look, "is link.rate too low, or the network slow?", "%d messages of streams wait though the link is up, the oldest for %s",
			s.Waiting, age(seconds(s.Seconds)))
	}
	if s.RefusedRules > 0 {
		d.add(wrong, "permit them in bridge.down in hub.yaml; the node's log names them", "the hub refuses %d bridge rules of the node", s.RefusedRules)
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
		d.add(look, "they are sent when the link is back", "%d keys of what %s wait for %s, the oldest for %s", b.Keys, what, who, age(seconds(b.Seconds)))
	case b.Seconds > lateSeconds:
		d.add(wrong, "is the network slow, or the other end's disk? see commit_seconds in /metrics of both", "%s lacks %d keys of what %s, the oldest for %s", who, b.Keys, what, age(seconds(b.Seconds)))
	default:
		d.add(look, "look again in a moment", "%s is catching up with what %s: %d keys to go", who, what, b.Keys)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// devices: what stands between wishes and devices?
func (d *diagnosis) devices(f facts) {
	away := keysWith(f.mappers, func(state string) bool { return state != resource.Online })
	if len(away) > 0 {
		d.add(wrong, "start it on the node; its log says why it ended", "mappers that are not running: %s", some(away))
	}
	if len(f.devices) == 0 {
		return
	}
	if f.mqttErr == nil && len(f.mappers) == 0 {
		d.add(look, "start one on the node, or publish reported/… by hand", "no mapper has ever connected to the node's broker")
	}
	var off, waiting, refused, disputed, orphans []string
	for _, x := range f.devices {
		name := x.Metadata.Name
		if x.Status.State != resource.Online {
			off = append(off, name)
		}
		for _, c := range x.Status.Conditions {
			switch {
			case c.Reason == "ModelMissing":
				orphans = append(orphans, name)
			case c.Type == "InSync" && c.Status == "False":
				waiting = append(waiting, name)
			case c.Type == "Refused" && c.Status == "True":
				refused = append(refused, name+" ("+c.Message+")")
			case c.Type == "TwinConflict" && c.Status == "True":
				disputed = append(disputed, name+" ("+c.Message+")")
			}
		}
	}
	if len(off)+len(waiting)+len(refused)+len(disputed)+len(orphans) == 0 {
		d.add(fine, "", "%d devices, all online and as they should be", len(f.devices))
		return
	}
	d.list(wrong, orphans, "create it", "devices whose model does not exist: %s")
	d.list(look, off, "is it switched on, is its address right? its mapper's log says more", "devices that are not online: %s")
	d.list(look, waiting, "the mapper applies it when the device is online", "devices that are not as they should be yet: %s")
	d.list(look, refused, "ask for a value that the device can take", "values that devices refused: %s")
	d.list(look, disputed, "publish the value that you mean, on either side", "values that cloud and node disagree about: %s")
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

func summarise(r resource.LinkReport) summary {
	d := &diagnosis{}
	hub := r
	hub.Links = nil // what is said of one node is said below
	d.ends(facts{hub: &hub})
	s := summary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == fine }), More: r.More}
	now, _ := resource.ParseTime(r.Now)
	for _, l := range r.Links {
		d := &diagnosis{}
		d.state(l, nil, now)
		d.shape(facts{hub: &r}, l)
		worst := d.Findings[0]
		for _, x := range d.Findings {
			if x.Mark == wrong && worst.Mark != wrong || x.Mark == look && worst.Mark == fine {
				worst = x
			}
		}
		s.Links = append(s.Links, linkSummary{l.Node, worst.Mark, worst.What, l})
	}
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
