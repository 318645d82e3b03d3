// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// RecordLoader restores sessions from their records.
type RecordLoader struct {
	sessions map[uint64]*loadedSession // by number
	bodies   map[uint64]*loadedBody
	users    map[uint64]int32 // of a body
	now      time.Time
}

// loadedSession has a session's records.
type loadedSession struct {
	deliveries []loadedDelivery
	inbound    map[uint16]uint64
	progress   uint64
	sent       uint64
	missed     int64
	replays    []*retainedReplay
	live       []loadedTopic
	disk       diskQueue
	last       uint64 // in disk
}

// loadedDelivery is the record of a delivery as it was read.
type loadedDelivery struct {
	delivery // without a message, if that is in a body
	id       uint64
	seq      uint64
	body     uint64 // id; 0: none
	released bool
}

func (d *Decoder) loaded(kind byte, id uint64) loadedDelivery {
	e := loadedDelivery{id: id, seq: d.Number(), released: kind == kindReleased}
	if e.released {
		e.qos, e.msg = 2, &Message{QoS: 2, Topic: d.Text()}
		return e
	}
	e.delivery = d.delivery()
	if kind == kindShared {
		e.body = d.Number()
		d.bad = d.bad || e.body == 0
	} else {
		e.msg = d.Message()
	}
	if e.seq == 0 || e.qos == 0 {
		d.bad = true
	}
	return e
}

func decodeSequenced(value []byte) (session uint64, e loadedDelivery, err error) {
	n := len(value) - 4
	if n < 0 || binary.LittleEndian.Uint32(value[n:]) != crc32.Checksum(value[:n], castagnoli) {
		return 0, e, errRecord
	}
	d := NewDecoder(value[:n])
	if d.Byte() != kindSequenced {
		return 0, e, errRecord
	}
	session = d.Number()
	e = d.loaded(kindSequenced, 0)
	return session, e, d.End()
}

// loadedTopic is a message that came during a replay.
type loadedTopic struct {
	seq, record uint64
	topic       string
}

type loadedBody struct {
	msg *Message
	SharedBody
}

// PendingReplay is a filter whose retained messages are still owed, except for users' own topics up to After.
type PendingReplay struct{ Filter, After string }

// NewRecordLoader makes an empty loader.
func NewRecordLoader(now time.Time) *RecordLoader {
	return &RecordLoader{sessions: make(map[uint64]*loadedSession), bodies: make(map[uint64]*loadedBody), users: make(map[uint64]int32), now: now}
}

func (l *RecordLoader) session(number uint64) *loadedSession {
	p := l.sessions[number]
	if p == nil {
		p = &loadedSession{inbound: make(map[uint16]uint64)}
		l.sessions[number] = p
	}
	return p
}

// Record takes a record of a kind below FirstOtherKind.
func (l *RecordLoader) Record(id uint64, value []byte) error {
	d := NewDecoder(value)
	kind := d.Byte()
	switch {
	case kind == kindBody:
		b := &loadedBody{msg: d.Message()}
		b.record = id
		l.bodies[id] = b
		return d.End()
	case kind == kindSequenced:
		return l.sequenced(id, value)
	case kind < kindDelivery || kind > kindLive:
		return errKind
	}
	p := l.session(d.Number())
	switch kind {
	case kindInbound:
		n := d.Number()
		if n == 0 || n > math.MaxUint16 {
			return errRecord
		}
		p.inbound[uint16(n)] = id
	case kindProgress:
		p.progress, p.sent, p.missed = id, d.Number(), int64(d.Number())
	case kindReplay:
		x := &retainedReplay{record: id, filter: d.Text()}
		how := d.delivery()
		x.qos, x.ids, x.seq, x.after = how.qos, how.ids, d.Number(), d.Text()
		p.replays = append(p.replays, x)
	case kindLive:
		p.live = append(p.live, loadedTopic{seq: d.Number(), record: id, topic: d.Text()})
	default:
		e := d.loaded(kind, id)
		l.users[e.body]++
		p.deliveries = append(p.deliveries, e)
	}
	return d.End()
}

// sequenced notes a message that stays on disk.
func (l *RecordLoader) sequenced(id uint64, value []byte) error {
	number, e, err := decodeSequenced(value)
	if err == nil && journal.FirstSequenced+e.seq != id {
		err = errRecord
	}
	if err != nil {
		return err
	}
	p := l.session(number)
	e.msg.Rebase(l.now)
	p.disk.add(e.seq, e.msg.diskSize(), e.msg.came)
	p.last = max(p.last, e.seq)
	return nil
}

// Restore fills an empty session, and returns the replays to continue.
func (l *RecordLoader) Restore(s *Session) ([]PendingReplay, error) {
	p := l.session(s.records.session)
	delete(l.sessions, s.records.session)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.backlog
	s.records.progress, b.sent, b.last = p.progress, p.sent, max(p.sent, p.last)
	b.missed, b.missedBefore, b.missedStored = p.missed, p.missed, p.missed
	b.disk = p.disk
	for id, record := range p.inbound {
		s.inbound.add(id, &inboundPublish{record: record, received: true})
	}
	slices.SortFunc(p.deliveries, func(a, b loadedDelivery) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range p.deliveries {
		if err := l.complete(&e); err != nil {
			return nil, err
		}
		s.restore(e, l.now)
		p.live = append(p.live, loadedTopic{seq: e.seq, topic: e.msg.Topic})
	}
	if !b.diskOnly() { // else its consumer is in this process
		b.last += restartLeap
	}
	return s.replays.restore(p), nil
}

// complete gives a delivery its message and its record.
func (l *RecordLoader) complete(e *loadedDelivery) error {
	e.record = &deliveryRecord{id: e.id, seq: e.seq, delivery: stateQueued, state: recordStored}
	if e.body == 0 {
		return nil
	}
	b := l.bodies[e.body]
	if b == nil {
		return errBody
	}
	if n := l.users[e.body]; n > 0 { // it is the first one restored
		b.users.Store(n)
		l.users[e.body] = 0
	}
	e.msg, e.record.body = b.msg, &b.SharedBody
	return nil
}

// restore puts a delivery into the inflight window, if it was sent, or into the backlog.
func (s *Session) restore(e loadedDelivery, now time.Time) {
	s.backlog.last = max(s.backlog.last, e.seq)
	e.msg.Rebase(now)
	switch {
	case (e.released || e.seq <= s.backlog.sent) && s.inflight.byID[packetID(e.seq)] == nil:
		if x := s.inflight.add(e.delivery); e.released {
			x.change(eventRelease)
		}
	case e.msg.Expired(now):
		s.backlog.discard(&e.delivery, DropExpired)
	default:
		s.push(e.delivery, nil)
	}
}

// restore restores what is owed of the retained messages, and of which of their topics newer messages have come.
func (r *replays) restore(p *loadedSession) (list []PendingReplay) {
	slices.SortFunc(p.live, func(a, b loadedTopic) int { return cmp.Compare(a.seq, b.seq) })
	r.list = p.replays
	for _, x := range p.live {
		if len(r.list) == 0 {
			r.records.forget(x.record)
			continue
		}
		l := &r.topics
		h := l.hash(x.topic)
		r.records.forget(l.last[h].record)
		l.count++
		l.last[h] = liveTopic{l.count, x.record}
	}
	for _, x := range r.list {
		x.since = uint64(sort.Search(len(p.live), func(i int) bool { return p.live[i].seq > x.seq }))
		list = append(list, PendingReplay{x.filter, x.after})
	}
	return list
}

// HasShared reports whether a session has messages that go to other members of shared subscriptions when it ends.
func (l *RecordLoader) HasShared(number uint64) bool {
	p := l.sessions[number]
	return p != nil && slices.ContainsFunc(p.deliveries, func(e loadedDelivery) bool { return e.share != nil })
}

// Orphans returns the records that belong to no restored session.
func (l *RecordLoader) Orphans() (records []uint64) {
	for _, p := range l.sessions {
		for _, e := range p.deliveries {
			records = append(records, e.id)
			if b := l.bodies[e.body]; b != nil {
				l.users[e.body]--
				b.users.Add(-1)
			}
		}
		for _, id := range p.inbound {
			records = append(records, id)
		}
		for _, x := range p.replays {
			records = append(records, x.record)
		}
		for _, x := range p.live {
			records = append(records, x.record)
		}
		records = append(p.disk.records(records), p.progress)
	}
	for id, b := range l.bodies {
		if b.users.Load() <= 0 && l.users[id] <= 0 {
			records = append(records, id)
		}
	}
	return records
}
