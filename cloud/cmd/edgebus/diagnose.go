package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
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
