package twin

import (
	"strings"
	"time"
)

// maxGone is how many removed devices are remembered for who watches.
const maxGone = 4096

// history says which devices have changed since a revision. It holds one number
// a device, not one a change: who watches gets the latest state, not every step to it.
// Revisions begin anew, and higher, with every start of the core.
type history struct {
	rev     uint64
	floor   uint64            // what changed up to here is no longer known one by one
	changed map[string]uint64 // by device
	gone    map[string]uint64 // devices that left
	wake    chan struct{}     // closed by the next change
}

func (h *history) begin(now time.Time) {
	h.rev = uint64(now.UnixMilli()) << 12 // a core makes fewer than 4,096 commits a millisecond
	h.floor = h.rev
	h.changed, h.gone = make(map[string]uint64), make(map[string]uint64)
	h.wake = make(chan struct{})
}

func (h *history) add(changed map[string]bool, devices map[string]*device) {
	if len(changed) == 0 {
		return
	}
	h.rev++
	for name := range changed {
		delete(h.changed, name)
		delete(h.gone, name)
		if devices[name] != nil {
			h.changed[name] = h.rev
		} else {
			h.gone[name] = h.rev
		}
	}
	if len(h.gone) > maxGone {
		clear(h.gone)
		h.floor = h.rev
	}
	close(h.wake)
	h.wake = make(chan struct{})
}

// Changes are what has changed since a revision.
type Changes struct {
	Rev     uint64          // where this ends, and the next begins
	Changed []string        // devices that came or changed
	Gone    []string        // devices that left
	More    <-chan struct{} // closed when there is more
}

// Changes lists the devices that changed after since. It is not ok when since is
// too old, or of the future: list again.
func (t *Twin) Changes(since uint64) (c Changes, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h := &t.history
	c = Changes{Rev: h.rev, More: h.wake}
	if since < h.floor || since > h.rev {
		return c, false
	}
	for name, rev := range h.changed {
		if rev > since {
			c.Changed = append(c.Changed, name)
		}
	}
	for name, rev := range h.gone {
		if rev > since {
			c.Gone = append(c.Gone, name)
		}
	}
	return c, true
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
