// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/topics/resource"
)

// AppliedPath is where a follower says what its copy has: log, at, and asOf in ms since 1970, as the hub's status had it, or 0. What a hub has sent
// says little: much waits in the connection to a machine that is frozen or cut off. It is a GET, since nothing is stored.
const AppliedPath = Path + "/applied"

const (
	lateAge   = time.Minute        // of a copy, which is then said by edgebus doctor
	silentAge = 30 * time.Second   // without a word of a follower, which is then gone
	forgetAge = 7 * 24 * time.Hour // a copy that is gone for so long was given up
)

// hubCopy is what a follower said of its copy last.
type hubCopy struct {
	asOf time.Time // it has all that the hub had then; if it is not whole, when it said something first
	at   ordered.Position
	said time.Time
}

// copies are those of which the hub has heard since its start, by the users who follow.
type copies struct {
	mu     sync.Mutex
	byUser map[string]hubCopy
}

// ServeApplied notes what the copy of a user has.
func (s *Server) ServeApplied(r *http.Request, user string) error {
	q := r.URL.Query()
	id, idErr := strconv.ParseUint(q.Get("log"), 16, 64)
	at, atErr := strconv.ParseUint(q.Get("at"), 10, 64)
	asOf, asOfErr := strconv.ParseInt(q.Get("asOf"), 10, 64)
	if idErr != nil || atErr != nil || asOfErr != nil {
		return resource.Errorf(resource.Invalid, "", "log, at and asOf are the identity of a log, a position in it, and ms since 1970")
	}
	if now := s.Source.ID(); ordered.LogID(id) != now {
		return resource.Errorf(resource.Conflict, "log", "the hub's log is %x, and not %x", uint64(now), id)
	}
	now := s.Now()
	s.copies.mu.Lock()
	defer s.copies.mu.Unlock()
	before, known := s.copies.byUser[user]
	c := hubCopy{before.asOf, ordered.Position(at), now}
	if asOf > 0 {
		c.asOf = time.UnixMilli(min(asOf, now.UnixMilli()))
	} else if !known {
		c.asOf = now
	}
	s.copies.byUser[user] = c
	return nil
}

// known are the copies that nobody has given up.
func (c *copies) known(now time.Time) map[string]hubCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byUser, func(_ string, one hubCopy) bool { return now.Sub(one.said) > forgetAge })
	return maps.Clone(c.byUser)
}

// Late says what is wrong with the copies that are behind or gone, by the users who follow.
func (s *Server) Late() (late map[string]string) {
	now := s.Now()
	for user, c := range s.copies.known(now) {
		if now.Sub(c.asOf) <= lateAge {
			continue
		}
		if late == nil {
			late = make(map[string]string)
		}
		is := fmt.Sprintf("lacks about %d bytes of the log", s.Source.Behind(c.at))
		if now.Sub(c.said) > silentAge {
			is = fmt.Sprintf("was last heard of at %s, and lacks about %d bytes of the log", resource.FormatTime(c.said), s.Source.Behind(c.at))
		}
		late[user] = fmt.Sprintf("it has what the hub had at %s, %s", resource.FormatTime(c.asOf), is)
	}
	return late
}

// followStats are the followers and their copies.
type followStats struct {
	connected int
	age       time.Duration // of the oldest copy
	behind    int64         // bytes that the copy lacks which lacks most
}

func (s *Server) stats() followStats {
	now := s.Now()
	st := followStats{connected: len(s.places)}
	all := slices.Collect(maps.Values(s.copies.known(now)))
	if len(all) == 0 {
		return st
	}
	oldest := slices.MinFunc(all, func(a, b hubCopy) int { return a.asOf.Compare(b.asOf) })
	furthest := slices.MinFunc(all, func(a, b hubCopy) int { return cmp.Compare(a.at, b.at) })
	st.age, st.behind = max(now.Sub(oldest.asOf), 0), s.Source.Behind(furthest.at)
	return st
}

// Register registers the metrics.
func (s *Server) Register(r metrics.Registry) {
	g := metrics.NewGroup("hub_followers", s.stats)
	g.Gauge("connected", "Followers that the log is sent to.", func(st followStats) float64 { return float64(st.connected) })
	g.Gauge("behind_seconds", "How old the oldest copy is of those that were heard of, also if it is gone.", func(st followStats) float64 { return st.age.Seconds() })
	g.Gauge("behind_bytes", "About how much of the log that copy lacks which lacks most.", func(st followStats) float64 { return float64(st.behind) })
	r.MustRegister(g)
}
