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

// RetainedReader returns up to max more retained messages, with their values as of the call, and none at the end. It is
// not called concurrently.
type RetainedReader func(max int) []*Message

// retainedReplay is a subscription's retained messages that were not sent yet.
type retainedReplay struct {
	filter string
	read   RetainedReader // nil: they must not be fetched yet
	since  uint64         // liveTopics.count at the subscription
	qos    byte
	ids    []uint32

	// A durable session stores how far the replay is, to continue after a crash.
	record uint64
	seq    uint64 // of the session's newest message at the subscription
	after  string // users' own topics up to this one were fetched and stored
}

// ReplayRecord makes the record that says that a filter's retained messages are owed.
func (s *Session) ReplayRecord(filter string, d DeliveryOptions) journal.RecordChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replayChange(&retainedReplay{filter: filter, qos: d.QoS, ids: d.IDs, record: s.log.ID(), seq: s.seq})
}

func (s *Session) replayChange(p *retainedReplay) journal.RecordChange {
	e := Encoder(s.encode(kindReplay))
	e.Text(p.filter)
	e.delivery(delivery{qos: p.qos, ids: p.ids})
	e.Number(p.seq)
	e.Text(p.after)
	return journal.RecordChange{ID: p.record, Value: e}
}

// OweRetained begins a replay of a filter's retained messages; StartReplay gives it their reader. A topic of which a message
// arrives from now on is left out of the replay. It replaces an earlier replay of the filter. record is the id of ReplayRecord's
// record in the log; 0: the session is not durable.
func (s *Session) OweRetained(filter string, record uint64, d DeliveryOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.forget(record)
		return
	}
	s.cancelReplay(filter)
	s.replays = append(s.replays, &retainedReplay{filter: filter, since: s.live.count, qos: d.QoS, ids: d.IDs, record: record, seq: s.seq})
}

// StartReplay makes the session fetch the retained messages of a filter's replay.
func (s *Session) StartReplay(filter string, read RetainedReader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.replays {
		if p.filter == filter {
			p.read = read
		}
	}
	if s.consumer != nil {
		s.consumer.wake(nil)
	}
}

// CancelReplay forgets the retained messages of a filter that is no longer subscribed.
func (s *Session) CancelReplay(filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelReplay(filter)
}

func (s *Session) cancelReplay(filter string) {
	if i := slices.IndexFunc(s.replays, func(p *retainedReplay) bool { return p.filter == filter }); i >= 0 {
		s.endReplay(s.replays[i])
	}
}

// endReplay deletes a replay and its record.
func (s *Session) endReplay(p *retainedReplay) {
	s.replays = slices.DeleteFunc(s.replays, func(x *retainedReplay) bool { return x == p })
	s.forget(p.record)
	p.record = 0
	if len(s.replays) == 0 {
		s.forget(s.live.records(nil)...)
		s.live = liveTopics{}
	}
}

// replayDue reports whether retained messages are to be fetched now.
func (s *Session) replayDue(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextReplay(w) != nil
}

// nextReplay is the replay to fetch from; nil: none may be fetched from while something else waits to be sent.
func (s *Session) nextReplay(w *Writer) *retainedReplay {
	if s.consumer != w || s.fetching || s.queue.live > 0 || s.inflight.nextResend() != nil {
		return nil
	}
	for _, p := range s.replays {
		if p.read != nil {
			return p
		}
	}
	return nil
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
	s.fetching = true
	s.mu.Unlock()
	chunk := p.read(replayChunk)
	s.mu.Lock()
	s.fetching = false
	if s.consumer != nil {
		s.consumer.wake(nil) // the consumer may belong to a newer connection, which waits for this
	}
	switch {
	case !slices.Contains(s.replays, p): // unsubscribed, or subscribed again, meanwhile
	case len(chunk) == 0:
		s.endReplay(p)
		w.replaying.Store(len(s.replays) > 0)
	default:
		s.enqueueRetained(chunk, p)
	}
	return true
}

// enqueueRetained queues retained messages. A durable session stores those of QoS 1 and 2, in one commit with how far
// the replay is: after a crash none of them is fetched again.
func (s *Session) enqueueRetained(chunk []*Message, p *retainedReplay) {
	var pending []UncommittedDelivery
	var changes []journal.RecordChange
	before := p.after
	for _, m := range chunk {
		if m.Record > 0 { // a users' own topic; these come in order
			p.after = m.Topic
		}
		d := DeliveryOptions{QoS: min(m.QoS, p.qos), Retain: true, IDs: p.ids}
		switch {
		case s.live.has(m.Topic, p.since):
		case s.log == nil || d.QoS == 0:
			s.push(newDelivery(m, d), nil)
		default:
			x := s.pushDurable(m, d, true)
			pending, changes = append(pending, x), append(changes, x.Change(nil))
		}
	}
	if p.record == 0 || len(changes) == 0 && p.after == before {
		return
	}
	s.log.Commit(append(changes, s.replayChange(p)), func(err error) {
		for _, x := range pending {
			x.Committed(err)
		}
	})
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

func (l *liveTopics) records(to []uint64) []uint64 {
	for _, x := range l.last {
		to = append(to, x.record)
	}
	return to
}

// noteLive is called for a message that is queued.
func (s *Session) noteLive(topic string) {
	if len(s.replays) == 0 {
		return
	}
	l := &s.live
	h := l.hash(topic)
	// A message that arrives during a fetch may be newer than the fetched one, and must be noted.
	if x, known := l.last[h]; known || s.fetching || len(l.last) < maxLiveTopics {
		l.count++
		x.count = l.count
		l.last[h] = x
	}
}

// forgetLive is called for a message that is not, or no longer, queued: the client gets the retained one of its topic.
// During a fetch it doesn't: what is fetched may be older than what the client got before.
func (s *Session) forgetLive(topic string) {
	if !s.fetching && s.live.has(topic, 0) {
		h := s.live.hash(topic)
		s.forget(s.live.last[h].record)
		delete(s.live.last, h)
	}
}

// keepLive makes the record of a delivered message say that its topic was delivered, and returns the record
// that said so until now.
func (s *Session) keepLive(topic string, seq, record uint64) (old uint64) {
	h := s.live.hash(topic)
	x := s.live.last[h]
	old, x.record = x.record, record
	s.live.last[h] = x
	s.log.Commit([]journal.RecordChange{{ID: record, Value: s.encodeTopic(kindLive, seq, topic)}}, nil)
	return old
}
