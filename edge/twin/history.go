package twin

import (
	"container/list"
	"strings"
	"time"
)

// maxGone is how many removed devices are remembered for who watches.
const maxGone = 4096

// history says which devices have changed since a revision. It holds one number
// a device, not one a change: who watches gets the latest state, not every step to it.
// Revisions begin anew, and higher, with every start of the core.
type history struct {
	rev    uint64
	floor  uint64 // what changed up to here is no longer known one by one
	order  list.List
	places map[string]*list.Element // in order, by device: who changed last is last
	gone   int                      // devices in it that left
	wake   chan struct{}            // closed by the next change
}

// change is when a device last changed, or left.
type change struct {
	name string
	rev  uint64
	gone bool
}

func (h *history) begin(now time.Time) {
	h.rev = uint64(now.UnixMilli()) << 12 // a core makes fewer than 4,096 commits a millisecond
	h.floor = h.rev
	h.places = make(map[string]*list.Element)
	h.wake = make(chan struct{})
}

func (h *history) add(changed map[string]bool, devices map[string]*device) {
	if len(changed) == 0 {
		return
	}
	h.rev++
	for name := range changed {
		h.put(name, devices[name] == nil)
	}
	if h.gone > maxGone {
		h.forgetGone()
	}
	close(h.wake)
	h.wake = make(chan struct{})
}

func (h *history) put(name string, gone bool) {
	at := h.places[name]
	if at == nil {
		at = h.order.PushBack(&change{name: name})
		h.places[name] = at
	}
	h.order.MoveToBack(at)
	c := at.Value.(*change)
	if c.gone {
		h.gone--
	}
	if gone {
		h.gone++
	}
	c.rev, c.gone = h.rev, gone
}

func (h *history) forgetGone() {
	for at := h.order.Front(); at != nil; {
		c, next := at.Value.(*change), at.Next()
		if c.gone {
			h.order.Remove(at)
			delete(h.places, c.name)
		}
		at = next
	}
	h.gone, h.floor = 0, h.rev
}

// of is the revision of a device.
func (h *history) of(name string) uint64 {
	if at := h.places[name]; at != nil {
		return max(at.Value.(*change).rev, h.floor)
	}
	return h.floor
}

// Changes lists the devices that changed, and those that left, after since, up to
// rev; more is closed when there is more. It is not ok when since is too old, or of
// the future: list again.
func (t *Twin) Changes(since uint64) (rev uint64, changed, gone []string, more <-chan struct{}, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h := &t.history
	if since < h.floor || since > h.rev {
		return h.rev, nil, nil, h.wake, false
	}
	for at := h.order.Back(); at != nil && at.Value.(*change).rev > since; at = at.Prev() {
		if c := at.Value.(*change); c.gone {
			gone = append(gone, c.name)
		} else {
			changed = append(changed, c.name)
		}
	}
	return h.rev, changed, gone, h.wake, true
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
