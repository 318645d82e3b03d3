package doctor

import (
	"maps"
	"slices"

	"github.com/edgebus/edgebus/topics/resource"
)

// checkPrograms: do both work?
func checkPrograms(d *nodeDiagnosis, f facts) {
	if f.core != nil {
		d.add(markOK, "", "the core answers at %s (version %s)", f.coreAt, f.core.Version)
	}
	d.addIf(f.core == nil && f.coreGiven, markWrong, "is edgecore running there?", "the core does not answer at %s: %v", f.coreAt, f.coreErr)
	for _, r := range []*resource.LinkReport{f.hub, f.core} {
		if r == nil {
			continue
		}
		d.addIf(r.MissingData != "", markWrong, "what it acknowledged may be lost; it refuses messages that it would have to store: restore a backup (edgebus restore)",
			"%s has lost its files: %s", r.Program, r.MissingData)
		d.addIf(r.DescriptorShortage != "", markWrong, "raise its limit of open files (LimitNOFILE= of its unit, ulimit -n), or stop the clients that hold so many connections",
			"%s refuses new connections: %s, the rest are kept for its own work", r.Program, r.DescriptorShortage)
		d.addIf(r.LowSpace != "", markLook, "free space on it, or move data.dir to a larger disk: when it is full, writes are refused", "%s: %s", r.Program, r.LowSpace)
		if o := r.ForeignOrigin; o != nil {
			at, err := resource.ParseTime(o.Time)
			now, _ := resource.ParseTime(r.Now)
			d.addIf(err == nil && now.Sub(at) < recentTime, markLook, "if that page is yours, list the origin in mqtt.websocket.origins: its browser tells it nothing",
				"%s refused a web page of %s at its listener %s, %s ago", r.Program, o.Origin, o.Listener, ageInSentence(now.Sub(at)))
		}
		d.addIf(r.Rules != "", markLook, "correct the file (auth.topics): it is read again when it changes",
			"%s uses older rules for users' own topics than its file has now: %s", r.Program, r.Rules)
		for _, store := range slices.Sorted(maps.Keys(r.FailingStores)) {
			d.add(markWrong, "free space on its disk, or repair it; the program then continues by itself", "%s can't store (%s): %s", r.Program, store, r.FailingStores[store])
		}
		for _, store := range slices.Sorted(maps.Keys(r.DamagedStores)) {
			d.add(markWrong, "it works until it is stopped, and will not start again with these files: restore a backup (edgebus restore)", "%s has damaged files (%s): %s",
				r.Program, store, r.DamagedStores[store])
		}
		d.addIf(r.FullestQueue > fullQueue, markLook, "the client is offline or slow: when its queue is full, messages for it are dropped (limits.session)",
			"the queue of client %q on %s is %.0f %% full", r.FullestQueueClient, r.Program, 100*r.FullestQueue)
		d.addIf(r.Missed > 0, markLook, "its log names the clients, which are offline or slow: connect them, end their sessions (edgebus session end), or raise limits.session",
			"%s had no room for %d messages in sessions, and dropped them (edgebus session list: missed)", r.Program, r.Missed)
	}
}

// checkVersions: are hub and core of one version?
func checkVersions(d *nodeDiagnosis, f facts) {
	if f.hub == nil {
		return
	}
	core := f.hubLink().Version
	if f.core != nil {
		core = f.core.Version
	}
	d.addIf(core != "" && core != f.hub.Version, markLook, "upgrade the older one", "the hub has version %s, the core %s", f.hub.Version, core)
}
