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
	return h.rev, after(h.changed, since), after(h.gone, since), h.wake, true
}

func after(revs map[string]uint64, since uint64) (names []string) {
	for name, rev := range revs {
		if rev > since {
			names = append(names, name)
		}
	}
	return names
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
