package twin

import (
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// maxGone is how many removed devices are remembered for who watches.
const maxGone = 4096

// history says which devices have changed since a revision. It holds one number
// a device, not one a change: who watches gets the latest state, not every step to it.
// Revisions begin anew, and higher, with every start of the core.
type history struct {
	rev    uint64
	floor  uint64                   // what changed up to here is no longer known one by one
	order  list.List                // of *resource.Change
	places map[string]*list.Element // in order, the last one of each name: who changed last is last
	gone   int                      // devices in order that left
	wake   chan struct{}            // closed after the next change
}

// begin takes note of the devices that there are, for who hears that one has left wants to know which it was.
func (h *history) begin(now time.Time, devices map[string]*device) {
	h.rev = uint64(now.UnixMilli()) << 12 // fewer than 4,096 devices change in a millisecond, over the life of a core
	h.floor = h.rev
	h.places = make(map[string]*list.Element)
	h.wake = make(chan struct{})
	for name, d := range devices {
		h.push(resource.Change{Name: name, Namespace: d.namespace(), Rev: h.rev})
	}
}

func (d *device) namespace() string { return d.bundle.Device.Metadata.Namespace }

func (h *history) push(c resource.Change) {
	h.places[c.Name] = h.order.PushBack(&c)
}

// add takes note of what changed. tell wakes who watches: there may be many, and all have to do then.
func (h *history) add(changed map[string]bool, devices map[string]*device) (tell func()) {
	if len(changed) == 0 {
		return func() {}
	}
	for name := range changed {
		h.put(name, devices[name])
	}
	if h.gone > maxGone {
		h.forgetGone()
	}
	waiting := h.wake
	h.wake = make(chan struct{})
	return func() { close(waiting) }
}

// put takes note of a device that changed, or of one that left: now is nil.
func (h *history) put(name string, now *device) {
	at := h.places[name]
	same := at != nil && now != nil && at.Value.(*resource.Change).Namespace == now.namespace()
	if at != nil && !same {
		h.leave(at)
	}
	if now == nil {
		return
	}
	c := resource.Change{Name: name, Namespace: now.namespace(), Rev: h.next()}
	if !same {
		h.push(c)
		return
	}
	h.order.MoveToBack(at)
	was := at.Value.(*resource.Change)
	if was.Gone {
		h.gone--
	}
	*was = c
}

// next is a revision: each change has its own, so that who is told of some of them can say of which.
func (h *history) next() uint64 {
	h.rev++
	return h.rev
}

func (h *history) leave(at *list.Element) {
	c := at.Value.(*resource.Change)
	if c.Gone {
		return // before
	}
	h.order.MoveToBack(at)
	h.gone++
	c.Rev, c.Gone = h.next(), true
}

func (h *history) forgetGone() {
	for at := h.order.Front(); at != nil; {
		c, next := at.Value.(*resource.Change), at.Next()
		if c.Gone {
			h.order.Remove(at)
			if h.places[c.Name] == at {
				delete(h.places, c.Name)
			}
		}
		at = next
	}
	h.gone, h.floor = 0, h.rev
}

// of is the revision of a device.
func (h *history) of(name string) uint64 {
	if at := h.places[name]; at != nil {
		return max(at.Value.(*resource.Change).Rev, h.floor)
	}
	return h.floor
}

// Changes lists the devices that changed, and those that left, after since, up to
// rev, in the order in which they did; more is closed when there is more. It is not ok
// when since is too old, or of the future: list again.
func (t *Twin) Changes(since uint64) (rev uint64, changes []resource.Change, more <-chan struct{}, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h := &t.history
	if since < h.floor || since > h.rev {
		return h.rev, nil, h.wake, false
	}
	for at := h.order.Back(); at != nil && at.Value.(*resource.Change).Rev > since; at = at.Prev() {
		changes = append(changes, *at.Value.(*resource.Change))
	}
	slices.Reverse(changes) // who is cut off in the midst goes on where that was
	return h.rev, changes, h.wake, true
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
