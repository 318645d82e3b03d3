// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/ordered"
)

// Hub is what a hub tells the others of itself, every few seconds. That is a hint: who has it may be wrong about a hub, and nothing is decided by it that
// the log decides.
type Hub struct {
	Name     string           `json:"name"`
	Instance uint64           `json:"instance"` // of its process, to tell two hubs of one name apart; 0: it is no hub, and only asks
	Version  string           `json:"version,omitempty"`
	Records  uint32           `json:"records"` // the highest version of the log's records that it knows
	At       ordered.Position `json:"at"`
	Clock    time.Time        `json:"clock"`
	Owns     bool             `json:"owns,omitempty"`
	Drained  bool             `json:"drained,omitempty"`
	Barred   string           `json:"barred,omitempty"` // why it may not own the log
	Link     string           `json:"link,omitempty"`   // at which address nodes reach it
	Auth     string           `json:"auth,omitempty"`   // a digest of who may come in there
	Asks     bool             `json:"asks,omitempty"`   // the others are to tell of themselves now
}

// HeardHub is a hub that was heard.
type HeardHub struct {
	Hub
	When  time.Time // by this hub's clock
	Twice time.Time // when two hubs of this name were heard last

	former uint64 // the instance before
}

// Hubs are those that were heard.
type Hubs struct {
	mu   sync.Mutex
	has  map[string]HeardHub
	ends []endAt // what the log's end was, in order
}

type endAt struct {
	at   ordered.Position
	when time.Time
}

const (
	maxHubs    = 1000 // the one that was heard least lately is forgotten then
	maxHubText = 4096
	maxEnds    = 4096
	// ForgottenAfter is when a hub that is away is forgotten.
	ForgottenAfter = 24 * time.Hour
)

// Hear takes what a hub has told. It reports whether that asks for an answer.
func (h *Hubs) Hear(text []byte, now time.Time) (asks bool) {
	var said Hub
	if len(text) > maxHubText || json.Unmarshal(text, &said) != nil || said.Name == "" {
		return false
	}
	if said.Instance == 0 { // a command that asks, and has nothing of the log
		return said.Asks
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.has == nil {
		h.has = make(map[string]HeardHub)
	}
	had, known := h.has[said.Name]
	if !known && len(h.has) >= maxHubs {
		longest, since := "", now
		for name, other := range h.has {
			if longest == "" || other.When.Before(since) {
				longest, since = name, other.When
			}
		}
		delete(h.has, longest)
	}
	next := HeardHub{Hub: said, When: now, Twice: had.Twice, former: had.former}
	if known && had.Instance != said.Instance {
		if next.former = had.Instance; said.Instance == had.former { // it isn't one that was started again
			next.Twice = now
		}
	}
	h.has[said.Name] = next
	if n := len(h.ends); n == 0 || said.At > h.ends[n-1].at {
		h.ends = append(h.ends, endAt{said.At, now})
		h.ends = slices.Delete(h.ends, 0, max(len(h.ends)-maxEnds, 0))
	}
	return said.Asks
}

// List is those that were heard lately enough, by name.
func (h *Hubs) List(now time.Time) (list []HeardHub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, hub := range h.has {
		if now.Sub(hub.When) > ForgottenAfter {
			delete(h.has, name)
			continue
		}
		list = append(list, hub)
	}
	slices.SortFunc(list, func(a, b HeardHub) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Behind is how much a hub lacks that had the log up to a position when it was heard: frames, and since when there are more. What others have told
// after that is in the log since.
func (h *Hubs) Behind(at ordered.Position, heard, now time.Time) (frames uint64, since time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.ends)
	for n > 0 && h.ends[n-1].when.After(heard) {
		n--
	}
	if n == 0 || h.ends[n-1].at <= at {
		return 0, 0
	}
	i, _ := slices.BinarySearchFunc(h.ends[:n], at+1, func(e endAt, at ordered.Position) int {
		if e.at < at {
			return -1
		}
		return 1
	})
	return uint64(h.ends[n-1].at - at), now.Sub(h.ends[min(i, n-1)].when)
}
