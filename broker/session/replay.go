// SPDX-License-Identifier: Apache-2.0

package session

import (
	"hash/maphash"
	"slices"

	"github.com/edgebus/edgebus/broker/journal"
)

// When a client subscribes, the session sends it the retained messages that match, as fast as the client takes them. A
// message that is published meanwhile is newer than the retained one of its topic, or the same: then the retained one is left out, so
// that no message comes twice, and none after a newer one of its topic (docs/adr/0017, 0039).

// replayChunk bounds how many retained messages a session holds at a time.
const replayChunk = 64

// RetainedReader returns up to max more retained messages, with their values as of the call; nil at the end; and an empty list if there may be more
// later: StartReplay has it called again. It is not called concurrently.
type RetainedReader func(max int) []*Message

// retainedReplay is a subscription's retained messages that were not sent yet.
type retainedReplay struct {
	filter string
	read   RetainedReader // nil: they must not be fetched before StartReplay says so
	since  uint64         // liveTopics.count at the subscription
	qos    byte
	ids    []uint32

	// A durable session stores how far the replay is, to continue after a crash.
	record uint64
	seq    uint64 // of the session's newest message at the subscription
	after  string // users' own topics up to this one were fetched and stored
}

// ReplayRecord makes the record that says that a filter's retained messages are owed.
func (s *Session) ReplayRecord(filter string, how DeliveryOptions) journal.RecordChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records.replayChange(&retainedReplay{filter: filter, qos: how.QoS, ids: how.IDs, record: s.records.log.ID(), seq: s.backlog.last})
}

// OweRetained begins a replay of a filter's retained messages; StartReplay gives it their reader. A topic of which a message
// arrives from now on is left out of the replay. It replaces an earlier replay of the filter. record is the id of ReplayRecord's
// record in the log; 0: the session is not durable.
func (s *Session) OweRetained(filter string, record uint64, how DeliveryOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.records.forget(record)
		return
	}
	s.replays.owe(&retainedReplay{filter: filter, qos: how.QoS, ids: how.IDs, record: record, seq: s.backlog.last})
}

// StartReplay makes the session fetch the retained messages of a filter's replay.
func (s *Session) StartReplay(filter string, read RetainedReader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.replays.of(filter); p != nil {
		p.read = read
	}
	if s.consumer != nil {
		s.consumer.wake(nil)
	}
}

// CancelReplay forgets the retained messages of a filter that is no longer subscribed.
func (s *Session) CancelReplay(filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replays.end(s.replays.of(filter))
}

// replayDue reports whether retained messages are to be fetched now.
func (s *Session) replayDue(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextReplay(w) != nil
}

// nextReplay is the replay to fetch from; nil: none may be fetched from while something else waits to be sent.
func (s *Session) nextReplay(w *Writer) *retainedReplay {
	if s.consumer != w || s.replays.fetching || s.backlog.queue.live > 0 || s.inflight.nextResend() != nil {
		return nil
	}
	return s.replays.readable()
}

// fetchRetained queues the next few retained messages, if nothing else waits. It reports whether there may be more to
// write. They are read without the lock: the reader may take locks of a store whose owner holds them while it enqueues
// here.
func (s *Session) fetchRetained(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.nextReplay(w)
	if p == nil {
		return false
	}
	read := p.read
	p.read, s.replays.fetching = nil, true
	s.mu.Unlock()
	chunk := read(replayChunk)
	s.mu.Lock()
	s.replays.fetching = false
	if s.consumer != nil {
		s.consumer.wake(nil) // the consumer may belong to a newer connection, which waits for this
	}
	switch {
	case !slices.Contains(s.replays.list, p): // unsubscribed, or subscribed again, meanwhile
	case chunk == nil:
		s.replays.end(p)
		w.replaying.Store(len(s.replays.list) > 0)
	case len(chunk) > 0:
		p.read = read
		s.enqueueRetained(chunk, p)
	}
	return true
}

// enqueueRetained queues retained messages. A durable session stores those of QoS 1 and 2, in one commit with how far
// the replay is: after a crash none of them is fetched again.
func (s *Session) enqueueRetained(chunk []*Message, p *retainedReplay) {
	var uncommitted []UncommittedDelivery
	var changes []journal.RecordChange
	before := p.after
	for _, m := range chunk {
		if m.Record > 0 { // a users' own topic; these come in order
			p.after = m.Topic
		}
		how := DeliveryOptions{QoS: min(m.QoS, p.qos), Retain: true, IDs: p.ids}
		switch {
		case s.replays.topics.has(m.Topic, p.since):
		case !s.records.durable() || how.QoS == 0:
			s.push(newDelivery(m, how), nil)
		default:
			u := s.pushDurable(m, how, true)
			uncommitted, changes = append(uncommitted, u), append(changes, u.Change(nil))
		}
	}
	if p.record == 0 || len(changes) == 0 && p.after == before {
		return
	}
	s.records.log.Commit(append(changes, s.records.replayChange(p)), func(err error) {
		for _, u := range uncommitted {
			u.Committed(err)
		}
	})
}

// replays are the session's replays, and of which topics messages have come since the oldest of them began.
type replays struct {
	records  *records
	list     []*retainedReplay
	fetching bool // retained messages are being fetched
	topics   liveTopics
}

// of is the replay of a filter; nil: there is none.
func (r *replays) of(filter string) *retainedReplay {
	for _, p := range r.list {
		if p.filter == filter {
			return p
		}
	}
	return nil
}

// readable is the first replay that may be fetched from; nil: there is none.
func (r *replays) readable() *retainedReplay {
	for _, p := range r.list {
		if p.read != nil {
			return p
		}
	}
	return nil
}

// owe adds a replay in the place of an earlier one of its filter.
func (r *replays) owe(p *retainedReplay) {
	r.end(r.of(p.filter))
	p.since = r.topics.count
	r.list = append(r.list, p)
}

// end deletes a replay, if there is one, and its record.
func (r *replays) end(p *retainedReplay) {
	if p == nil {
		return
	}
	r.list = slices.DeleteFunc(r.list, func(x *retainedReplay) bool { return x == p })
	r.records.forget(p.record)
	p.record = 0
	if len(r.list) == 0 {
		r.records.forget(r.topics.appendRecords(nil)...)
		r.topics = liveTopics{}
	}
}

func (r *replays) appendRecords(to []uint64) []uint64 {
	for _, p := range r.list {
		to = append(to, p.record)
	}
	return r.topics.appendRecords(to)
}

// noteTopic is called for a message that is queued.
func (r *replays) noteTopic(topic string) {
	if len(r.list) == 0 {
		return
	}
	l := &r.topics
	h := l.hash(topic)
	// A message that arrives during a fetch may be newer than the fetched one, and must be noted.
	if x, known := l.last[h]; known || r.fetching || len(l.last) < maxLiveTopics {
		l.count++
		x.count = l.count
		l.last[h] = x
	}
}

// forgetTopic is called for a message that is not, or no longer, queued: the client gets the retained one of its topic.
// During a fetch it doesn't: what is fetched may be older than what the client got before.
func (r *replays) forgetTopic(topic string) {
	if l := &r.topics; !r.fetching && l.has(topic, 0) {
		h := l.hash(topic)
		r.records.forget(l.last[h].record)
		delete(l.last, h)
	}
}

// keepTopic makes the record of a delivered message say that its topic was delivered, and returns the record
// that said so until now.
func (r *replays) keepTopic(topic string, seq, record uint64) (old uint64) {
	l := &r.topics
	h := l.hash(topic)
	x := l.last[h]
	old, x.record = x.record, record
	l.last[h] = x
	r.records.log.Commit([]journal.RecordChange{{ID: record, Value: r.records.encodeTopic(kindLive, seq, topic)}}, nil)
	return old
}

// maxLiveTopics is how many topics a session remembers during a replay to a slow client. A message of another topic may
// come a second time, as retained.
const maxLiveTopics = 1 << 14

// liveTopics are the topics of the messages that were queued since the oldest replay began. They are known by their
// hashes: topics may be long.
type liveTopics struct {
	seed  maphash.Seed
	count uint64
	last  map[uint64]liveTopic
}

type liveTopic struct {
	count  uint64 // at the topic's last message
	record uint64 // of a durable session, which says that the message was delivered; 0: none
}

func (l *liveTopics) hash(topic string) uint64 {
	if l.last == nil {
		l.seed, l.last = maphash.MakeSeed(), make(map[uint64]liveTopic)
	}
	return maphash.String(l.seed, topic)
}

// has reports whether a message of the topic was queued after count was reached.
func (l *liveTopics) has(topic string, count uint64) bool {
	return l.last != nil && l.last[l.hash(topic)].count > count
}

func (l *liveTopics) appendRecords(to []uint64) []uint64 {
	for _, x := range l.last {
		to = append(to, x.record)
	}
	return to
}
