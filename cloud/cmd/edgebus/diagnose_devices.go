package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

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
