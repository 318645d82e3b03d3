// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"maps"
	"slices"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkSync: have both sides what the other one owns?
func checkSync(d *NodeDiagnosis, f Facts) {
	l, known := f.link()
	if !known {
		return
	}
	switch {
	case l.OtherHub != "":
		this := f.Hub
		if this == nil {
			this = f.Core
		}
		d.add(MarkWrong, fmt.Sprintf("has this hub lost its data? restore its backup (edgebus restore); is it the wrong hub? correct link.server in core.yaml; "+
			"does it replace the other? set replaces: [%s] in hub.yaml, and start it again", l.OtherHub),
			"the node has what %s gave it, and keeps it: this is another hub, %s, and changes nothing on it", l.OtherHub, this.Hub)
	case f.Hub != nil:
		d.direction(l, "the node", "the cloud wants")
	}
	if f.Core != nil && l.OverQuota == "" { // otherwise waiting does not help
		d.direction(f.Core.Links[0], "the hub", "the node reports")
	}
}

func (d *NodeDiagnosis) direction(l resource.Link, who, what string) {
	b := l.Behind
	switch {
	case b == nil:
		d.add(MarkLook, "it is known once the node has connected", "whether %s has all that %s is not known: it has not connected since the hub started", who, what)
	case l.State == resource.Online && l.InStep:
		d.add(MarkOK, "", "%s has all that %s", who, what)
	case l.State != resource.Online && b.Keys == 0:
		d.add(MarkOK, "", "%s had all that %s", who, what)
	case l.State != resource.Online:
		d.add(MarkLook, "they are sent when the link is back", "to be sent to %s: %s that %s, the oldest for %s", who, printer.Plural(b.Keys, "key"), what, ageInSentence(durationOfSeconds(b.Seconds)))
	case b.Seconds > lateSeconds:
		d.add(MarkWrong, "is the network slow, or the other end's disk? see commit_seconds in /metrics of both", "%s lacks %s that %s, the oldest for %s", who, printer.Plural(b.Keys, "key"), what, ageInSentence(durationOfSeconds(b.Seconds)))
	default:
		d.add(MarkLook, "look again in a moment", "%s is catching up with what %s: %s to go", who, what, printer.Plural(b.Keys, "key"))
	}
}

// checkStreams: do telemetry, events and bridged messages reach the hub?
func checkStreams(d *NodeDiagnosis, f Facts) {
	if _, known := f.link(); !known || f.Core == nil || f.Core.Streams == nil {
		return
	}
	s := f.Core.Streams
	for _, why := range slices.Sorted(maps.Keys(s.Dropped)) {
		if n := s.Dropped[why]; n > 0 && why != "not_linked" { // as rules without store are meant to
			since := "the core's start"
			if why == "full" {
				since = "its queue of streams began"
			}
			d.add(MarkLook, "its log says more; room and age are limits.streams in core.yaml", "%s for the hub were dropped since %s: %s", printer.Plural(int(n), "message"), since, why)
		}
	}
	d.addIf(s.Waiting > 0 && s.Seconds > lateSeconds && f.Core.Links[0].State == resource.Online, MarkLook, "is link.rate too low, or the network slow?",
		"%s of streams wait though the link is up, the oldest for %s", printer.Plural(s.Waiting, "message"), printer.Age(durationOfSeconds(s.Seconds)))
	d.addIf(s.RefusedRules > 0, MarkWrong, "permit them in bridge.down in hub.yaml; the node's log names them",
		"the hub refuses %s of the node", printer.Plural(s.RefusedRules, "bridge rule"))
}
