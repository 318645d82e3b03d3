// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"maps"
	"slices"

	"github.com/edgebus/edgebus/topics/resource"
)

// checkPrograms: do both work?
func checkPrograms(d *NodeDiagnosis, f Facts) {
	if f.Core != nil {
		d.add(MarkOK, "", "the core answers at %s (version %s)", f.CoreAt, f.Core.Version)
	}
	d.addIf(f.Core == nil && f.CoreGiven, MarkWrong, "is edgecore running there?", "the core does not answer at %s: %v", f.CoreAt, f.CoreErr)
	for _, r := range []*resource.LinkReport{f.Hub, f.Core} {
		if r == nil {
			continue
		}
		d.addIf(r.MissingData != "", MarkWrong, "what it acknowledged may be lost; it refuses messages that it would have to store: restore a backup (edgebus restore)",
			"%s has lost its files: %s", r.Program, r.MissingData)
		d.addIf(r.DescriptorShortage != "", MarkWrong, "raise its limit of open files (LimitNOFILE= of its unit, ulimit -n), or stop the clients that hold so many connections",
			"%s refuses new connections: %s, the rest are kept for its own work", r.Program, r.DescriptorShortage)
		d.addIf(r.LowSpace != "", MarkLook, "free space on it, or move data.dir to a larger disk: when it is full, writes are refused", "%s: %s", r.Program, r.LowSpace)
		if o := r.ForeignOrigin; o != nil {
			at, err := resource.ParseTime(o.Time)
			now, _ := resource.ParseTime(r.Now)
			d.addIf(err == nil && now.Sub(at) < recentTime, MarkLook, "if that page is yours, list the origin in mqtt.websocket.origins: its browser tells it nothing",
				"%s refused a web page of %s at its listener %s, %s ago", r.Program, o.Origin, o.Listener, ageInSentence(now.Sub(at)))
		}
		d.addIf(r.Rules != "", MarkLook, "correct the file (auth.topics): it is read again when it changes",
			"%s uses older rules for users' own topics than its file has now: %s", r.Program, r.Rules)
		for _, view := range slices.Sorted(maps.Keys(r.FailingViews)) {
			d.add(MarkLook, "is its broker there, and do its settings (views) fit? It tries again by itself", "the view %s of %s isn't well: %s", view, r.Program, r.FailingViews[view])
		}
		for _, user := range slices.Sorted(maps.Keys(r.LateCopies)) {
			d.add(MarkLook, "on its machine, edgebus follow --status and the log of edgebus-follow say why; if it was given up, the hub forgets it after a week, or with its next start",
				"the copy of the hub's log by %s is behind: %s", user, r.LateCopies[user])
		}
		for _, store := range slices.Sorted(maps.Keys(r.FailingStores)) {
			d.add(MarkWrong, "free space on its disk, or repair it; the program then continues by itself", "%s can't store (%s): %s", r.Program, store, r.FailingStores[store])
		}
		for _, store := range slices.Sorted(maps.Keys(r.DamagedStores)) {
			d.add(MarkWrong, "it works until it is stopped, and will not start again with these files: restore a backup (edgebus restore)", "%s has damaged files (%s): %s",
				r.Program, store, r.DamagedStores[store])
		}
		d.addIf(r.FullestQueue > fullQueue, MarkLook, "the client is offline or slow: when its queue is full, messages for it are dropped (limits.session)",
			"the queue of client %q on %s is %.0f %% full", r.FullestQueueClient, r.Program, 100*r.FullestQueue)
		d.addIf(r.Missed > 0, MarkLook, "its log names the clients, which are offline or slow: connect them, end their sessions (edgebus session end), or raise limits.session",
			"%s had no room for %d messages in sessions, and dropped them (edgebus session list: missed)", r.Program, r.Missed)
	}
}

// checkVersions: are hub and core of one version?
func checkVersions(d *NodeDiagnosis, f Facts) {
	if f.Hub == nil {
		return
	}
	core := f.hubLink().Version
	if f.Core != nil {
		core = f.Core.Version
	}
	d.addIf(core != "" && core != f.Hub.Version, MarkLook, "upgrade the older one", "the hub has version %s, the core %s", f.Hub.Version, core)
}
