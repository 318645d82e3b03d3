// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// maxRemovedDevices is how many removed devices are remembered for watchers.
const maxRemovedDevices = 4096

// deviceHistory knows which devices have changed since a revision. It holds one revision for each device, not for each change: a watcher
// gets the latest state and not every change. Each start of the core begins with a higher revision.
type deviceHistory struct {
	rev      uint64
	floor    uint64                   // changes up to this revision are no longer known one by one
	order    list.List                // of *resource.Change
	elements map[string]*list.Element // elements of order, the last one of each name
	removed  int                      // removed devices in order
	wake     chan struct{}            // closed after the next change
}

// begin notes the namespaces of the present devices, which watchers need when a device is removed.
func (h *deviceHistory) begin(now time.Time, devices map[string]*device) {
	h.rev = uint64(now.UnixMilli()) << 12 // fewer than 4,096 devices change in a millisecond, over the life of a core
	h.floor = h.rev
	h.elements = make(map[string]*list.Element)
	h.wake = make(chan struct{})
	for name, d := range devices {
		h.push(resource.DeviceChange{Name: name, Namespace: d.namespace(), UID: d.uid(), Rev: h.rev, Added: h.rev})
	}
}

func (h *deviceHistory) push(c resource.DeviceChange) {
	h.elements[c.Name] = h.order.PushBack(&c)
}

// add notes the devices that changed. wake wakes all watchers, and is called later because there may be many.
func (h *deviceHistory) add(changed map[string]bool, devices map[string]*device) (wake func()) {
	if len(changed) == 0 {
		return func() {}
	}
	for name := range changed {
		h.put(name, devices[name])
	}
	if h.removed > maxRemovedDevices {
		h.forgetRemoved()
	}
	waiting := h.wake
	h.wake = make(chan struct{})
	return func() { close(waiting) }
}

// put notes a device that changed, or one that was removed: now is nil. One that was removed and made again is two devices, so
// that who was away meanwhile hears of both.
func (h *deviceHistory) put(name string, now *device) {
	at := h.elements[name]
	if at != nil && now != nil {
		if was := at.Value.(*resource.DeviceChange); !was.Removed && was.Namespace == now.namespace() && was.UID == now.uid() {
			h.order.MoveToBack(at)
			was.Rev = h.next()
			return
		}
	}
	if at != nil {
		h.remove(at)
	}
	if now != nil {
		rev := h.next()
		h.push(resource.DeviceChange{Name: name, Namespace: now.namespace(), UID: now.uid(), Rev: rev, Added: rev})
	}
}

// next is a new revision. Each change has its own, so that a watcher can go on between any two of them.
func (h *deviceHistory) next() uint64 {
	h.rev++
	return h.rev
}

func (h *deviceHistory) remove(at *list.Element) {
	c := at.Value.(*resource.DeviceChange)
	if c.Removed {
		return // it was removed before
	}
	h.order.MoveToBack(at)
	h.removed++
	c.Rev, c.Removed = h.next(), true
}

func (h *deviceHistory) forgetRemoved() {
	for at := h.order.Front(); at != nil; {
		c, next := at.Value.(*resource.DeviceChange), at.Next()
		if c.Removed {
			h.order.Remove(at)
			if h.elements[c.Name] == at {
				delete(h.elements, c.Name)
			}
		}
		at = next
	}
	h.removed, h.floor = 0, h.rev
}

// revOf is the revision of a device.
func (h *deviceHistory) revOf(name string) uint64 {
	if at := h.elements[name]; at != nil {
		return max(at.Value.(*resource.DeviceChange).Rev, h.floor)
	}
	return h.floor
}

// since lists what changed after a revision, in rising order, so that an interrupted watcher goes on after the last that it got. ok is
// false if the revision is too old, or in the future.
func (h *deviceHistory) since(rev uint64) (changes []resource.DeviceChange, ok bool) {
	if rev < h.floor || rev > h.rev {
		return nil, false
	}
	for at := h.order.Back(); at != nil && at.Value.(*resource.DeviceChange).Rev > rev; at = at.Prev() {
		changes = append(changes, *at.Value.(*resource.DeviceChange))
	}
	slices.Reverse(changes)
	return changes, true
}

// deviceOf is the device that a key belongs to; empty: none.
func deviceOf(key string) string {
	rest, ok := strings.CutPrefix(key, "devices/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func (b *batch) mark(key string) {
	if name := deviceOf(key); name != "" {
		b.changed[name] = true
	}
}
