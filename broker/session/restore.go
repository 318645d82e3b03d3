package session

import (
	"cmp"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// Loader puts sessions together from their records.
type Loader struct {
	parts  map[uint64]*parts // by session
	bodies map[uint64]*loadedBody
	users  map[uint64]int32 // of a body
	now    time.Time
}

// parts are a session's records.
type parts struct {
	entries  []entry
	inbound  map[uint16]uint64
	progress uint64
	sent     uint64
	pulls    []*pull
	arrived  []seen
	behind   behind // what is in a sequence
	last     uint64 // of it
}

// seen is a message that a session had, as far as it counts for its pulls.
type seen struct {
	seq, record uint64
	topic       string
}

type entry struct {
	record   uint64
	seq      uint64
	how      Delivery
	msg      *Message // nil: shared
	body     uint64
	released bool
}

type loadedBody struct {
	msg *Message
	Body
}

// LoadedPull is a filter whose retained messages are still owed, but for users' own topics up to one.
type LoadedPull struct{ Filter, After string }

// NewLoader makes an empty loader.
func NewLoader(now time.Time) *Loader {
	return &Loader{parts: make(map[uint64]*parts), bodies: make(map[uint64]*loadedBody), users: make(map[uint64]int32), now: now}
}

func (l *Loader) of(number uint64) *parts {
	p := l.parts[number]
	if p == nil {
		p = &parts{inbound: make(map[uint16]uint64)}
		l.parts[number] = p
	}
	return p
}

var errKind = errors.New("a record of an unknown kind: it may be a newer version's")

// Record takes a record of a kind below KindOther.
func (l *Loader) Record(id uint64, value []byte) error {
	d := NewDecoder(value)
	kind := d.Byte()
	if kind == kindBody {
		b := &loadedBody{msg: d.Message()}
		b.record = id
		l.bodies[id] = b
		return d.End()
	}
	if kind == kindSequenced {
		return l.sequenced(id, value)
	}
	if kind == 0 || kind > kindArrived {
		return errKind
	}
	number := d.Number()
	switch kind {
	case kindInbound:
		n := d.Number()
		if n == 0 || n > 0xFFFF {
			return errRecord
		}
		l.of(number).inbound[uint16(n)] = id
	case kindProgress:
		l.of(number).progress, l.of(number).sent = id, d.Number()
	case kindPull:
		p := l.of(number)
		x := &pull{marker: id, filter: d.Text()}
		how := d.how()
		x.qos, x.ids, x.seq, x.after = how.QoS, how.IDs, d.Number(), d.Text()
		p.pulls = append(p.pulls, x)
	case kindArrived:
		p := l.of(number)
		p.arrived = append(p.arrived, seen{seq: d.Number(), record: id, topic: d.Text()})
	default:
		e := d.entry(kind, id)
		l.users[e.body]++
		l.of(number).entries = append(l.of(number).entries, e)
	}
	return d.End()
}

// sequenced takes note of a message that stays on disk.
func (l *Loader) sequenced(id uint64, value []byte) error {
	number, e, err := sequencedFrom(value)
	if err == nil && journal.Sequence+e.seq != id {
		err = errRecord
	}
	if err != nil {
		return err
	}
	p := l.of(number)
	e.msg.Anchor(l.now)
	p.behind.put(e.seq, e.msg.stored(), e.msg.came)
	p.last = max(p.last, e.seq)
	return nil
}

func (d *Decoder) entry(kind byte, id uint64) entry {
	e := entry{record: id, seq: d.Number(), released: kind == kindReleased}
	if e.released {
		e.how.QoS, e.msg = 2, &Message{QoS: 2, Topic: d.Text()}
		return e
	}
	e.how = d.how()
	if kind == kindShared {
		e.body = d.Number()
		d.bad = d.bad || e.body == 0
	} else {
		e.msg = d.Message()
	}
	if e.seq == 0 || e.how.QoS == 0 {
		d.bad = true
	}
	return e
}

// Restore fills a session that is still empty, and returns the pulls to go on with.
func (l *Loader) Restore(s *Session) ([]LoadedPull, error) {
	p := l.parts[s.number]
	if p == nil {
		return nil, nil
	}
	delete(l.parts, s.number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress, s.sent, s.seq = p.progress, p.sent, max(p.sent, p.last)
	s.behind = p.behind
	s.count.Queued.Add(int64(s.behind.live))
	for id, record := range p.inbound {
		s.inbound[id] = &inbound{record: record, received: true}
	}
	slices.SortFunc(p.entries, func(a, b entry) int { return int(int64(a.seq - b.seq)) })
	for _, e := range p.entries {
		it, err := l.item(e)
		if err != nil {
			return nil, err
		}
		s.restore(it, e, l.now)
		p.arrived = append(p.arrived, seen{seq: e.seq, topic: it.msg.Topic})
	}
	return s.restorePulls(p), nil
}

// restorePulls brings back what is owed of what is retained, and which of its topics have come since.
func (s *Session) restorePulls(p *parts) (list []LoadedPull) {
	slices.SortFunc(p.arrived, func(a, b seen) int { return cmp.Compare(a.seq, b.seq) })
	if s.pulls = p.pulls; len(s.pulls) == 0 {
		for _, a := range p.arrived {
			s.log.Forget(a.record)
		}
		return nil
	}
	for _, a := range p.arrived {
		h := s.came.hash(a.topic)
		s.log.Forget(s.came.last[h].record)
		s.came.count++
		s.came.last[h] = arrival{s.came.count, a.record}
	}
	for _, x := range s.pulls {
		x.since = uint64(sort.Search(len(p.arrived), func(i int) bool { return p.arrived[i].seq > x.seq }))
		list = append(list, LoadedPull{x.filter, x.after})
	}
	return list
}

// Shares says whether a session has messages that are another member's of a shared subscription
// once it ends.
func (l *Loader) Shares(number uint64) bool {
	p := l.parts[number]
	return p != nil && slices.ContainsFunc(p.entries, func(e entry) bool { return e.how.Share != nil })
}

var errBody = errors.New("a queued message is missing")

func (l *Loader) item(e entry) (item, error) {
	it := item{msg: e.msg, ids: e.how.IDs, qos: e.how.QoS, retain: e.how.Retain, share: e.how.Share, stake: &stake{seq: e.seq, record: e.record}}
	if e.body > 0 {
		b := l.bodies[e.body]
		if b == nil {
			return it, errBody
		}
		if n := l.users[e.body]; n > 0 { // the first that is restored
			b.users.Store(n)
			l.users[e.body] = 0
		}
		it.msg, it.stake.body = b.msg, &b.Body
	}
	return it, nil
}

// restore puts an item where it was: on its way, if it was sent, or in the queue.
func (s *Session) restore(it item, e entry, now time.Time) {
	s.seq = max(s.seq, e.seq)
	it.msg.Anchor(now)
	if (e.released || e.seq <= s.sent) && s.flights.byID[packetID(e.seq)] == nil {
		x := s.flights.add(it)
		x.released = e.released
		s.count.Queued.Add(1)
		return
	}
	if it.msg.Expired(now) {
		s.count.drop(DropExpired, 1)
		s.done(it)
		return
	}
	s.push(it, nil)
}

// Orphans are records that belong to nothing that was restored.
func (l *Loader) Orphans() (records []uint64) {
	for _, p := range l.parts {
		for _, e := range p.entries {
			records = append(records, e.record)
			if b := l.bodies[e.body]; b != nil {
				l.users[e.body]--
				b.users.Add(-1)
			}
		}
		for _, id := range p.inbound {
			records = append(records, id)
		}
		for _, x := range p.pulls {
			records = append(records, x.marker)
		}
		for _, a := range p.arrived {
			records = append(records, a.record)
		}
		records = append(p.behind.all(records), p.progress)
	}
	for id, b := range l.bodies {
		if b.users.Load() <= 0 && l.users[id] <= 0 {
			records = append(records, id)
		}
	}
	return records
}
