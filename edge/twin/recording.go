// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"strings"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// historyStep is what the history is told of a property, or of all of a device.
type historyStep struct {
	bundle   *resource.Bundle
	property string
	value    string
	ended    bool
	ts       int64
}

func (s historyStep) tell(h HistoryRecorder) {
	if s.ended {
		h.End(s.bundle, s.property, s.ts)
	} else {
		h.Record(s.bundle, s.property, s.value, s.ts)
	}
}

// recordHistory has a reported value recorded.
func (ds *devices) recordHistory(b *batch, d *device, property string, e link.Entry) {
	if ds.opts.History != nil {
		b.histories = append(b.histories, historyStep{bundle: &d.bundle, property: property, value: string(e.Value), ts: e.TS})
	}
}

// noteHistory has the end of what is known recorded: a reported value is cleared, or its device is not online.
func (ds *devices) noteHistory(b *batch, e link.Entry) {
	if ds.opts.History == nil || !strings.HasPrefix(e.Key, "devices/") {
		return
	}
	if !e.Deleted && !strings.HasSuffix(e.Key, "/state") {
		return
	}
	a, err := topics.ParseKey(ds.opts.Node, e.Key)
	d := ds.byName[a.Device]
	known := a.Kind == topics.KindReported && !e.Deleted || a.Kind == topics.KindDeviceState && string(e.Value) == resource.Online
	if err != nil || d == nil || known || a.Kind != topics.KindDeviceState && a.Kind != topics.KindReported {
		return
	}
	b.histories = append(b.histories, historyStep{bundle: &d.bundle, property: a.Name, ended: true, ts: b.now.UnixMilli()})
}

// endHistory has recorded that nothing is known any more of a device that leaves the node.
func (ds *devices) endHistory(b *batch, d *device) {
	if ds.opts.History != nil {
		b.histories = append(b.histories, historyStep{bundle: &d.bundle, ended: true, ts: b.now.UnixMilli()})
	}
}

// resumeHistory has the values recorded that a device is known to have again: its mapper may not report what has not changed.
func (ds *devices) resumeHistory(b *batch, name string) {
	d := ds.byName[name]
	if ds.opts.History == nil || d == nil {
		return
	}
	prefix := topics.DeviceKey(name, topics.KindReported, "")
	ds.up.Range(prefix, func(e link.Entry) bool {
		e.TS = b.now.UnixMilli()
		ds.recordHistory(b, d, strings.TrimPrefix(e.Key, prefix), e)
		return true
	})
}

// Bundles are the node's Devices with their models, by their UIDs.
func (r *reader) Bundles() map[string]resource.Bundle {
	r.host.RLock()
	defer r.host.RUnlock()
	all := make(map[string]resource.Bundle, len(r.devices.byName))
	for _, d := range r.devices.byName {
		all[d.uid()] = d.bundle
	}
	return all
}

// Bundle is a Device with its model, without its twin.
func (r *reader) Bundle(name string) (b resource.Bundle, ok bool) {
	r.host.RLock()
	defer r.host.RUnlock()
	d := r.devices.byName[name]
	if d == nil {
		return b, false
	}
	return d.bundle, true
}
