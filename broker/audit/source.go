// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgebus/edgebus/broker/daemon"
)

// What one source may write, so that the log has room for what others did. Beyond that its entries are summed.
const (
	refusalsAtOnce = 60               // lines
	refusalEvery   = 10 * time.Second // one more
	logShare       = 16               // a source fills one part of so many of all the log's files at once, and again within shareTime
	shareTime      = 24 * time.Hour
	leastShare     = 64 << 10  // bytes; more than an entry can have
	oldestSum      = time.Hour // a summary is written a minute after it began, or when its source may write, or then
	maxSources     = 4096
	maxSums        = 64 // kinds of entries of sources that haven't signed in, that are summed apart
)

// entrySource is whose entries are counted together: a user's, or those from an address of clients that haven't signed in.
type entrySource struct {
	name     string
	refusals *rate.Limiter // lines
	bytes    *rate.Limiter // of all lines; those who haven't signed in share one
	used     time.Time
	waiting  int64 // bytes in the queue
}

// summaryKey is what is summed together.
type summaryKey struct{ source, via, action, answer string }

// summary is the last of the entries that are summed, with their count.
type summary struct {
	Entry
	from  *entrySource
	apart bool // it is of one address of clients that haven't signed in
}

type entrySources struct {
	share     int           // bytes
	strangers *rate.Limiter // bytes of all who haven't signed in
	known     map[string]*entrySource
	sums      map[summaryKey]*summary
	apart     int // of the sums, those of strangers' addresses
	evicted   time.Time
}

func newEntrySources(log int64) entrySources {
	s := entrySources{share: int(max(log/logShare, leastShare)), known: make(map[string]*entrySource), sums: make(map[summaryKey]*summary)}
	s.strangers = s.limit()
	return s
}

func (s *entrySources) limit() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(s.share)/shareTime.Seconds()), s.share)
}

// The names of sources begin with what they are.
const (
	userPrefix     = "user "
	addressPrefix  = "address "
	otherAddresses = addressPrefix + "other" // those beyond what is remembered
)

// signedIn reports whether an entry is of somebody with a role. The name in any other is what the client claims.
func (e *Entry) signedIn() bool { return e.Roles != "" || e.Via == Hub }

// of returns the source of an entry.
func (s *entrySources) of(e *Entry, now time.Time) *entrySource {
	name := addressPrefix + daemon.Network(e.Remote)
	if e.signedIn() {
		name = userPrefix + e.User
	}
	from := s.known[name]
	if from == nil {
		if len(s.known) >= maxSources && !s.evict(now) && !e.signedIn() {
			name = otherAddresses
		}
		if from = s.known[name]; from == nil {
			from = &entrySource{name: name, refusals: rate.NewLimiter(rate.Every(refusalEvery), refusalsAtOnce), bytes: s.strangers}
			if e.signedIn() {
				from.bytes = s.limit()
			}
			s.known[name] = from
		}
	}
	from.used = now
	return from
}

// evict forgets, once a second at most, the sources that have all of their share again. It reports false if there are none.
func (s *entrySources) evict(now time.Time) bool {
	if now.Sub(s.evicted) < time.Second {
		return false
	}
	s.evicted = now
	before := len(s.known)
	maps.DeleteFunc(s.known, func(_ string, from *entrySource) bool {
		unused := shareTime
		if from.bytes == s.strangers {
			unused = refusalsAtOnce * refusalEvery
		}
		return from.waiting == 0 && now.Sub(from.used) > unused
	})
	return len(s.known) < before
}

// allow reports whether a source may write an entry. What the hub's own controllers do is limited by their work alone.
func (s *entrySources) allow(from *entrySource, e *Entry, cost int64, now time.Time) bool {
	if e.Via == Hub {
		return true
	}
	return (e.Answer == OK || from.refusals.AllowN(now, 1)) && from.bytes.AllowN(now, int(cost))
}

// sum adds an entry to the summary of those like it.
func (s *entrySources) sum(from *entrySource, e Entry) {
	key := summaryKey{from.name, e.Via, e.Action, e.Answer}
	sum := s.sums[key]
	apart := sum == nil && !e.signedIn() && s.apart < maxSums
	if apart {
		s.apart++
	} else if sum == nil && !e.signedIn() {
		key.source = otherAddresses
		sum = s.sums[key]
	}
	if sum == nil {
		sum = &summary{from: from, apart: apart, Entry: Entry{Since: e.Time}}
		s.sums[key] = sum
	}
	for _, text := range e.texts() {
		*text = cutText(*text, maxSummary)
	}
	e.Count, e.Since = sum.Count+1, sum.Since
	sum.Entry = e
}

// due returns and removes the summaries that may be written now, oldest first: those that their source has bytes for, those
// that are an hour old, and at the end all.
func (s *entrySources) due(now time.Time, end bool) []Entry {
	var due []Entry
	for key, sum := range s.sums {
		if end || now.Sub(sum.Since) >= oldestSum || sum.from.bytes.AllowN(now, int(sum.cost())) {
			due = append(due, sum.Entry)
			delete(s.sums, key)
			if sum.apart {
				s.apart--
			}
		}
	}
	slices.SortFunc(due, func(a, b Entry) int { return a.Since.Compare(b.Since) })
	return due
}
