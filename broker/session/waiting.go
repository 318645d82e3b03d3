package session

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// A session with Limits.Window keeps in memory what it sends next, and has the rest on disk
// only: of each message there, memory holds its weight here and its place in the journal's index.
// Its records are a sequence of the journal's, numbered by their place in the session's order.

// behind is what waits behind the queue of such a session, on disk only.
type behind struct {
	parts   map[uint64]*part // by number of the first message, divided by partLen
	next    uint64           // no message before it
	live    int
	bytes   int             // by weight
	pending map[uint64]item // that are not on disk yet
	reading bool
}

const partLen = 256

// part is a number of messages that follow each other.
type part struct {
	live           int
	oldest, newest time.Time       // when they came
	weights        [partLen]uint32 // 0: none
}

func (b *behind) put(seq uint64, weight int, came time.Time) {
	if b.parts == nil {
		b.parts, b.pending = make(map[uint64]*part), make(map[uint64]item)
	}
	p := b.parts[seq/partLen]
	if p == nil {
		p = &part{oldest: came, newest: came}
		b.parts[seq/partLen] = p
	}
	if came.Before(p.oldest) {
		p.oldest = came
	}
	if came.After(p.newest) {
		p.newest = came
	}
	if b.live == 0 || seq < b.next {
		b.next = seq
	}
	p.weights[seq%partLen] = uint32(max(1, weight))
	p.live++
	b.live++
	b.bytes += max(1, weight)
}

func (b *behind) has(seq uint64) bool {
	p := b.parts[seq/partLen]
	return p != nil && p.weights[seq%partLen] > 0
}

// remove takes a message out that is there.
func (b *behind) remove(seq uint64) {
	p := b.parts[seq/partLen]
	b.bytes -= int(p.weights[seq%partLen])
	b.live--
	p.weights[seq%partLen] = 0
	if p.live--; p.live == 0 {
		delete(b.parts, seq/partLen)
	}
	delete(b.pending, seq)
}

// from is the first message from a number on; there must be one.
func (b *behind) from(seq uint64) uint64 {
	for !b.has(seq) {
		if seq++; b.parts[seq/partLen] == nil {
			seq += partLen - seq%partLen
		}
	}
	return seq
}

// first is the oldest message; there must be one.
func (b *behind) first() uint64 {
	b.next = b.from(b.next)
	return b.next
}

// came corrects the time at which a message came, which was read from disk, by what is known
// since before the clock was set.
func (b *behind) came(seq uint64, t time.Time) time.Time {
	p := b.parts[seq/partLen]
	switch {
	case t.Before(p.oldest):
		return p.oldest
	case t.After(p.newest):
		return p.newest
	}
	return t
}

// all lists the records of what is on disk.
func (b *behind) all(to []uint64) []uint64 {
	seq := b.next
	for n := b.live; n > 0; n-- {
		seq = b.from(seq)
		if _, pending := b.pending[seq]; !pending {
			to = append(to, journal.Sequence+seq)
		}
		seq++
	}
	return to
}

// waiting counts the messages of the queue and behind it, and their bytes.
func (s *Session) waiting() (messages, bytes int) {
	return s.queue.live + s.behind.live, s.queue.bytes + s.behind.bytes
}

// InMemory counts the messages that wait in memory.
func (s *Session) InMemory() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.live
}

// windowed says whether the session keeps what is far from being sent on disk only.
func (s *Session) windowed() bool { return s.log != nil && s.limits.Window > 0 }

// fits says whether a message may wait in memory.
func (s *Session) fits(weight int) bool {
	return !s.windowed() || s.behind.live == 0 && s.queue.stored()+weight <= s.limits.Window
}

// crowded says whether there is no room in memory for a message of QoS 0.
func (s *Session) crowded(m *Message) bool {
	return s.windowed() && s.queue.live > 0 && s.queue.bytes+s.weigh(m) > 2*s.limits.Window
}

// putBehind has an offered message wait on disk only, once it is there.
func (s *Session) putBehind(it item) {
	it.stake.behind = true
	s.behind.put(it.stake.seq, s.weigh(it.msg), it.msg.came)
	s.behind.pending[it.stake.seq] = it
	s.count.Queued.Add(1)
}

// evictBehind drops the oldest message behind the queue.
func (s *Session) evictBehind() {
	seq := s.behind.first()
	it, pending := s.behind.pending[seq]
	s.behind.remove(seq)
	if pending {
		it.stake.over = true // and is deleted once it is there
	} else {
		s.log.Forget(journal.Sequence + seq)
	}
}

// dropOldBehind drops what has waited for too long, when all that is in memory has. A part is dropped
// once its newest message is old; who is given one before that is told of its age by Next.
func (s *Session) dropOldBehind(now time.Time) {
	for s.queue.live == 0 && s.behind.live > 0 {
		p := s.behind.parts[s.behind.first()/partLen]
		if now.Sub(p.newest) <= s.limits.Age {
			return
		}
		n := p.live
		for range n {
			s.evictBehind()
		}
		s.left(n)
		s.count.drop(DropTooOld, n)
	}
}

const (
	readMost    = 256         // messages that are read from disk at a time
	readAgain   = time.Second // after what could not be read
	readWeights = 64 << 10    // and about their bytes
)

// readAhead fills the queue with what comes next, if half of the window is free. It unlocks the session
// while it reads.
func (s *Session) readAhead(o *Outlet) {
	b := &s.behind
	if b.live == 0 || b.reading || s.queue.stored() > s.limits.Window/2 || !s.flights.room(s.window) {
		return
	}
	var list, ids []uint64
	weights := 0
	for seq := b.first(); len(list) < min(b.live, readMost) && weights < readWeights; seq++ {
		seq = b.from(seq)
		if it, pending := b.pending[seq]; pending {
			if len(list) == 0 { // it needn't be read
				b.remove(seq)
				s.left(1) // push counts it
				it.stake.behind, it.stake.pos = false, s.queue.items.end()
				s.push(it, nil)
			}
			break
		}
		list, ids = append(list, seq), append(ids, journal.Sequence+seq)
		weights += int(b.parts[seq/partLen].weights[seq%partLen])
	}
	if len(list) == 0 {
		return
	}
	now := s.now()
	b.reading = true
	s.mu.Unlock()
	items := make([]item, len(list))
	err := s.log.Read(ids, func(i int, value []byte) error {
		_, e, err := sequencedFrom(value)
		if err == nil && e.seq != list[i] {
			err = errRecord
		}
		if err == nil {
			items[i] = item{msg: e.msg, ids: e.how.IDs, qos: e.how.QoS, retain: e.how.Retain, stake: &stake{seq: e.seq, record: ids[i]}}
			items[i].msg.Anchor(now)
		}
		return err
	})
	s.mu.Lock()
	b.reading = false
	for i, seq := range list {
		if s.ended || !b.has(seq) { // dropped meanwhile
			continue
		}
		if items[i].msg == nil {
			s.unread(o, err)
			return
		}
		items[i].msg.came = b.came(seq, items[i].msg.came)
		b.remove(seq)
		s.left(1)
		s.push(items[i], nil)
	}
}

// unread deals with a message that can't be read: it is dropped if that won't change.
func (s *Session) unread(o *Outlet, err error) {
	if s.queue.live > 0 {
		return // those before it go first
	}
	if errors.Is(err, journal.ErrDamaged) {
		s.evictBehind()
		s.left(1)
		s.count.drop(DropDamaged, 1)
		o.Wake()
		return
	}
	time.AfterFunc(readAgain, o.Wake)
}

// A record of a sequence ends with a checksum: it is read alone, and that of the frame is of all in it.
func (s *Session) sequenced(it item) []byte {
	e := make(Encoder, 0, it.msg.stored()+64)
	e = append(e, kindSequenced)
	e.Number(s.number)
	e.Number(it.stake.seq)
	e.how(Delivery{QoS: it.qos, Retain: it.retain, IDs: it.ids})
	e.Message(it.msg)
	return binary.LittleEndian.AppendUint32(e, crc32.Checksum(e, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sequencedFrom decodes a record of a sequence.
func sequencedFrom(value []byte) (session uint64, e entry, err error) {
	n := len(value) - 4
	if n < 0 || binary.LittleEndian.Uint32(value[n:]) != crc32.Checksum(value[:n], castagnoli) {
		return 0, e, errRecord
	}
	d := NewDecoder(value[:n])
	if d.Byte() != kindSequenced {
		return 0, e, errRecord
	}
	session = d.Number()
	e = d.entry(kindSequenced, 0)
	return session, e, d.End()
}
