// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkDevices: do the mappers run, and have the devices the values that are desired?
func checkDevices(d *NodeDiagnosis, f Facts) {
	away := keysWith(f.Mappers, func(state string) bool { return state != resource.Online })
	if len(away) > 0 {
		d.add(MarkWrong, "start them on the node; their logs say why they ended", "mappers that are not running: %s", printer.FirstNames(away))
	}
	if len(f.Devices) == 0 {
		return
	}
	d.alarms(f)
	before := len(d.Findings)
	d.notOnline(f)
	var waiting, refused, unread, degraded, conflicts, overridden, noModel []string
	for _, x := range f.Devices {
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
			case c.Type == resource.ConditionDegraded && c.Status == "True":
				degraded = append(degraded, name+" ("+c.Message+")")
			case c.Type == "TwinConflict" && c.Status == "True":
				conflicts = append(conflicts, name+" ("+c.Message+")")
			}
		}
	}
	d.list(MarkWrong, noModel, "create it", "devices whose model does not exist: %s")
	d.list(MarkWrong, unread, "does the device have them? correct its model (propertyVisitors), or repair the device; its mapper keeps trying",
		"devices with values that can't be read: %s")
	d.list(MarkLook, degraded, "the message says what to set", "devices that do less than they are to: %s")
	d.list(MarkLook, waiting, "the mapper applies it when the device is online", "devices that are not as they should be yet: %s")
	d.list(MarkLook, overridden, "clear the override there, with an empty value; for the desired value to win, clear it and set it again: edgebus twin set DEVICE PROPERTY=",
		"values that are overridden on the node: %s")
	d.list(MarkLook, refused, "set a value that the device accepts, or none: edgebus twin set DEVICE PROPERTY= (after that the same value can be set again)", "values that devices refused: %s")
	d.list(MarkLook, conflicts, "publish the right value, on either side", "values that cloud and node disagree about: %s")
	if len(d.Findings) > before {
		return
	}
	what := printer.Plural(len(f.Devices), "device")
	if l := f.hubLink(); f.Hub != nil && l.State != resource.Online {
		now, _ := resource.ParseTime(f.Hub.Now)
		d.add(MarkLook, "it is known again when the node is back", "%s: their state is not known since the node disconnected; not connected%s", what, sinceText(l.Since, now))
		return
	}
	d.add(MarkOK, "", "%s, all online and as they should be", what)
}

// alarms lists the alarms that are raised: the devices' values are as they are, and all may be well with the node.
func (d *NodeDiagnosis) alarms(f Facts) {
	var raised, known []string
	for _, x := range f.Devices {
		for _, a := range slices.SortedFunc(slices.Values(x.Status.Alarms), resource.AlarmStatus.Compare) {
			text := x.Metadata.Name + " (" + a.Key() + ", " + a.Severity + ": " + terminal.Printable(a.Message, 100) + ")"
			if a.Acknowledged {
				known = append(known, text)
			} else {
				raised = append(raised, text)
			}
		}
	}
	d.list(MarkLook, raised, "edgebus alarm list shows them all; edgebus alarm ack DEVICE says that you know of them", "alarms that are raised: %s")
	d.list(MarkOK, known, "", "alarms that somebody has acknowledged: %s")
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

// notOnline lists the devices that are not online, by reason.
func (d *NodeDiagnosis) notOnline(f Facts) {
	type cause struct{ reason, message string }
	by := map[cause][]string{}
	for _, x := range f.Devices {
		c := resource.ConditionOf(x.Status.Conditions, resource.ConditionOnline)
		told := c.Type != ""
		switch {
		case !told && x.Status.State != resource.Online, told && c.Status != "True":
			by[cause{c.Reason, c.Message}] = append(by[cause{c.Reason, c.Message}], x.Metadata.Name)
		}
	}
	if up := keysWith(f.Mappers, func(state string) bool { return state == resource.Online }); len(by) > 0 && len(up) > 0 {
		d.add(MarkOK, "", "mappers that are running: %s", printer.FirstNames(up))
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
func (f Facts) aboutOffline(reason string) (m Mark, advice string) {
	switch reason {
	case resource.ReasonAway, resource.ReasonNoNode, "ModelMissing":
		return MarkOK, ""
	case resource.ReasonNoSuch:
		return MarkWrong, "correct spec.nodeName of the Device, or start a core with this name (node.name)"
	case resource.BadConfig:
		return MarkWrong, "correct the Device or its DeviceModel: its mapper tries again when one of them changes"
	case resource.ReasonNotHeard:
		return MarkLook, "look again in a moment; if it stays so, check that the mapper may publish for the device: auth.users in core.yaml"
	case resource.ReasonNoMapper:
		const advice = "start a mapper for the device's protocol on the node, or correct its spec.protocol.type"
		if len(keysWith(f.Mappers, func(state string) bool { return state == resource.Online })) == 0 {
			return MarkLook, advice // a client other than a mapper may publish its values
		}
		return MarkWrong, advice
	}
	return MarkLook, "is it switched on, is its address right? its mapper keeps trying"
}

func keysWith(m map[string]string, is func(string) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if is(m[name]) {
			names = append(names, name)
		}
	}
	return names
}
