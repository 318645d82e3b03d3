package session

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// Log is where a durable session's changes go.
type Log interface {
	// ID names a new record.
	ID() uint64
	// Commit makes changes durable, all or none. It never blocks. done is called once
	// they are, or can't be, and not by Commit itself; nil: nobody waits.
	Commit(changes []journal.Change, done func(error))
	// Forget deletes records some time soon; 0 is none.
	Forget(records ...uint64)
	// Read hands over the values of records, in order, each valid during the call.
	Read(records []uint64, each func(i int, value []byte) error) error
}

// stake is what a durable session has in an item besides the message.
type stake struct {
	seq     uint64 // place in the session's order, which the packet id follows from
	record  uint64 // 0: not on disk
	body    *Body  // nil: the record holds the message itself
	pending bool   // not yet on disk
	after   bool   // to be sent only when it is
	pos     uint64 // in the queue, while pending
	over    bool   // delivered or dropped already
	behind  bool   // on disk only, once it is there
	pulled  bool   // a retained message, fetched for a subscription
}

// Body is a message on disk that several sessions share. The last to let go of it
// deletes it.
type Body struct {
	record uint64
	users  atomic.Int32
}

// NewBody makes the body that as many offers share, and the change that stores it.
func NewBody(m *Message, log Log, offers int) (*Body, journal.Change) {
	b := &Body{record: log.ID()}
	b.users.Store(int32(offers))
	e := append(make(Encoder, 0, m.Weight()+32), kindBody)
	e.Message(m)
	return b, journal.Change{ID: b.record, Value: e}
}

// MakeDurable makes a session that is still empty outlive the process. number is its
// name in records, and never another's.
func (s *Session) MakeDurable(number uint64, log Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number, s.log = number, log
}

// Durable says whether the session outlives the process.
func (s *Session) Durable() bool { return s.log != nil }

// packetID is the same whenever a message is sent, also by another process: a
// client that got it can't take another message for it.
func packetID(seq uint64) uint16 { return uint16((seq-1)%math.MaxUint16) + 1 }

// Pending is a message in the queue of a durable session that is not yet stored. It
// must be settled.
type Pending struct {
	s  *Session
	it item
}

// EnqueueDurable queues a QoS 1 or 2 message in a durable session. It reports false when there was
// no room, which is counted. An offer of a session that has ended is none: it needn't
// be stored.
func (s *Session) EnqueueDurable(m *Message, d Delivery) (o Pending, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return Pending{}, true
	}
	if !s.makeRoom(m) {
		s.missed(m.Topic)
		s.count.drop(DropQueueFull, 1)
		return Pending{}, false
	}
	s.arrived(m.Topic)
	return s.offer(m, d, false), true
}

func (s *Session) offer(m *Message, d Delivery, pulled bool) Pending {
	s.seq++
	it := item{msg: m, ids: d.IDs, qos: d.QoS, retain: d.Retain, share: d.Share, stake: &stake{
		seq: s.seq, pending: true, after: d.Stored, pos: s.queue.items.end(), pulled: pulled,
	}}
	if it.stake.record = journal.Sequence + s.seq; !s.windowed() {
		it.stake.record = s.log.ID()
	}
	if s.fits(s.weigh(m)) {
		s.push(it, d.Batch)
	} else {
		s.putBehind(it)
	}
	return Pending{s: s, it: it}
}

// None says whether there is nothing to store and to settle.
func (o Pending) None() bool { return o.s == nil }

// SharesBody says whether the offer's message may be in a body that other offers share.
func (o Pending) SharesBody() bool { return !o.s.windowed() }

// Change stores the offer. body is nil when the message is in no other record.
func (o Pending) Change(body *Body) journal.Change {
	if !o.SharesBody() {
		return journal.Change{ID: o.it.stake.record, Value: o.s.sequenced(o.it)}
	}
	var where uint64
	if body != nil {
		where = body.record
		o.share(body)
	}
	return journal.Change{ID: o.it.stake.record, Value: o.s.entry(o.it, where)}
}

func (o Pending) share(body *Body) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.it.stake.body = body
}

// Committed tells the outcome: a message that could not be stored is not kept.
func (o Pending) Committed(err error) {
	s := o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	x := o.it.stake
	x.pending = false
	delete(s.behind.pending, x.seq)
	if err == nil {
		if s.ended || x.over {
			s.forgetDelivered(o.it) // its end came before it was on disk
		} else if s.writer != nil {
			s.writer.Wake()
		}
		return
	}
	x.record, x.body = 0, nil
	if s.ended || x.over || !x.behind && x.pos < s.queue.items.first {
		return // sent already, as QoS 1 may be: it is now like what a session without a journal has
	}
	if x.pulled && o.it.qos == 1 {
		return // after a crash it is fetched again
	}
	s.missed(o.it.msg.Topic)
	if x.behind {
		s.behind.remove(x.seq)
	} else {
		s.queue.evict(x.pos)
	}
	s.left(1)
	if s.writer != nil {
		s.writer.Wake() // what was behind it
	}
}

// waits says whether an item must not be sent yet. What is sent at QoS 2 has to be
// on disk, or its packet id could come to mean something else. At QoS 1 a second
// copy after a crash is allowed, and waiting would only cost time, unless one that can't
// be stored would let it pass.
func (s *Session) waits(it item) bool {
	if it.qos == 0 {
		return false
	}
	if !s.flights.room(s.window) {
		return true
	}
	return it.stake != nil && (it.stake.pending && (it.qos == 2 || it.stake.after) || s.flights.byID[packetID(it.stake.seq)] != nil)
}

// done lets go of an item that was delivered or dropped. What is still being stored
// is deleted when that is settled.
func (s *Session) done(it item) {
	x := it.stake
	if x == nil {
		return
	}
	x.over = true
	if !x.pending {
		s.forgetDelivered(it)
	}
}

// records lists what can be deleted now.
func (x *stake) records(to []uint64) []uint64 {
	if x.record == 0 {
		return to
	}
	to = append(to, x.record)
	x.record = 0
	if x.body != nil && x.body.users.Add(-1) == 0 {
		to = append(to, x.body.record)
	}
	x.body = nil
	return to
}

// all lists what can be deleted when the session ends.
func (x *stake) all(to []uint64) []uint64 {
	if x == nil || x.pending {
		return to
	}
	return x.records(to)
}

// sentTo notes how far the queue was sent, so that what is sent again after a
// restart is known to be a repetition.
func (s *Session) sentTo(seq uint64) {
	if s.progress == 0 {
		s.progress = s.log.ID()
	}
	s.log.Commit([]journal.Change{{ID: s.progress, Value: s.numbers(kindProgress, seq)}}, nil)
}

// release takes a PUBREC to disk before it is answered: the client forgets the
// packet id with the PUBREL, and must never get the message again.
func (s *Session) release(x *flight) {
	if x.releasing {
		return
	}
	x.releasing = true
	topic := "" // unless it still counts that its message came
	if !x.stake.pulled && s.came.has(x.msg.Topic) {
		topic = x.msg.Topic
	}
	put := journal.Change{ID: x.stake.record, Value: s.arrivalRecord(kindReleased, x.stake.seq, topic)}
	s.log.Commit([]journal.Change{put}, func(err error) { s.releasedOnDisk(x, err) })
}

func (s *Session) releasedOnDisk(x *flight, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.releasing = false
	if s.flights.byID[x.id] != x {
		return
	}
	if err != nil {
		s.giveUp()
		return
	}
	x.released = true
	if b := x.stake.body; b != nil {
		x.stake.body = nil
		if b.users.Add(-1) == 0 {
			s.log.Forget(b.record)
		}
	}
	// A connection that is still being answered comes to it when it begins: nothing
	// may be sent before its CONNACK.
	if s.writer != nil && s.writer.serves() {
		s.writer.Control(Ack{Type: typePubrel >> 4, ID: x.id}.Append(nil, s.version))
	}
}

// giveUp closes the connection when an answer can't be stored: only with a new one
// will the client ask again.
func (s *Session) giveUp() {
	if s.writer != nil {
		s.writer.Close()
	}
}

// Kinds of a session's records: the first byte of each. Whoever keeps other records
// in the same journal uses kinds from FirstOtherKind on.
const (
	kindEntry      byte = iota + 1 // a queued message: session, seq, how, message
	kindShared                     // the same of a message that others have, too: session, seq, how, number of the body
	kindBody                       // such a message
	kindReleased                   // a QoS 2 message after its PUBREC: session, seq, topic if that still counts for pulls
	kindInbound                    // a QoS 2 publish of the client's: session, packet id
	kindProgress                   // how far the queue was sent: session, seq
	kindPull                       // retained messages that are still to be sent: session, filter, how, seq at the subscription, topic after which
	kindSequenced                  // a queued message in a sequence: session, seq, how, message, checksum
	kindArrived                    // a message that was delivered while retained ones are still to be sent: session, seq, topic
	FirstOtherKind byte = 32
)

// Encoder appends values to a record.
type Encoder []byte

// Number appends a number.
func (e *Encoder) Number(n uint64) { *e = binary.AppendUvarint(*e, n) }

// Text appends a string.
func (e *Encoder) Text(s string) {
	e.Number(uint64(len(s)))
	*e = append(*e, s...)
}

// Flag appends a yes or no.
func (e *Encoder) Flag(yes bool) {
	if yes {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

// Time appends a moment, to the millisecond; the zero time stays zero.
func (e *Encoder) Time(t time.Time) {
	if t.IsZero() {
		e.Number(0)
		return
	}
	e.Number(uint64(max(t.UnixMilli(), 1)))
}

// Message appends a message.
func (e *Encoder) Message(m *Message) {
	p := &m.Props
	var has byte
	if p.PayloadFormat != nil {
		has = 1 + *p.PayloadFormat
	}
	*e = append(*e, m.QoS, has)
	e.Flag(m.Retain)
	e.Text(m.Topic)
	e.Number(uint64(len(m.Payload)))
	*e = append(*e, m.Payload...)
	e.Text(m.From)
	e.Time(m.At)
	e.Time(m.expires(m.At))
	e.Number(uint64(p.Expiry))
	e.Text(p.ContentType)
	e.Text(p.ResponseTopic)
	e.Text(string(p.Correlation))
	e.Number(uint64(len(p.User)))
	for _, u := range p.User {
		e.Text(u.Key)
		e.Text(u.Value)
	}
}

// Decoder takes a record apart. After the first mistake all values are zero, and
// End says so.
type Decoder struct {
	b   []byte
	bad bool
}

var errRecord = errors.New("a record that can't be read")

// NewDecoder makes a decoder. What it returns doesn't refer to b.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// End returns an error if something was missing, or is left over.
func (d *Decoder) End() error {
	if d.bad || len(d.b) > 0 {
		return errRecord
	}
	return nil
}

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// Flag takes a yes or no.
func (d *Decoder) Flag() bool { return d.Byte() != 0 }

// Number takes a number.
func (d *Decoder) Number() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[used:]
	return n
}

func (d *Decoder) bytes() []byte {
	n := d.Number()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

// Text takes a string.
func (d *Decoder) Text() string { return string(d.bytes()) }

// Count takes the number of things that follow, each of at least one byte.
func (d *Decoder) Count() int {
	n := d.Number()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

// Time takes a moment.
func (d *Decoder) Time() time.Time {
	n := d.Number()
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(n))
}

// Message takes a message.
func (d *Decoder) Message() *Message {
	m := &Message{QoS: d.Byte()}
	p := &m.Props
	if has := d.Byte(); has > 0 {
		format := has - 1
		p.PayloadFormat = &format
	}
	m.Retain = d.Flag()
	m.Topic = d.Text()
	m.Payload = append([]byte{}, d.bytes()...)
	m.From = d.Text()
	m.At = d.Time()
	_ = d.Time() // when it expires, which follows
	p.Expiry = uint32(d.Number())
	p.ContentType, p.ResponseTopic = d.Text(), d.Text()
	if b := d.bytes(); len(b) > 0 {
		p.Correlation = append([]byte{}, b...)
	}
	for range d.Count() {
		p.User = append(p.User, UserProperty{d.Text(), d.Text()})
	}
	if m.QoS > 2 {
		d.bad = true
	}
	return m
}

// Bits of how a message is delivered.
const (
	flagRetain = 1 << iota
	flagShare
)

// how appends what a subscription makes of a message.
func (e *Encoder) how(d Delivery) {
	var flags byte
	if d.Retain {
		flags |= flagRetain
	}
	if d.Share != nil {
		flags |= flagShare
	}
	*e = append(*e, d.QoS, flags)
	e.Number(uint64(len(d.IDs)))
	for _, id := range d.IDs {
		e.Number(uint64(id))
	}
	if d.Share != nil {
		e.Text(*d.Share)
	}
}

func (d *Decoder) how() (v Delivery) {
	v.QoS = d.Byte()
	flags := d.Byte()
	v.Retain = flags&flagRetain != 0
	for range d.Count() {
		v.IDs = append(v.IDs, uint32(d.Number()))
	}
	if flags&flagShare != 0 {
		share := d.Text()
		v.Share = &share
	}
	if v.QoS > 2 || flags > flagRetain|flagShare {
		d.bad = true
	}
	return v
}

// entry encodes an item; body is where its message is, if it isn't here.
func (s *Session) entry(it item, body uint64) []byte {
	e := make(Encoder, 0, it.msg.Weight()+64)
	kind := kindEntry
	if body > 0 {
		kind = kindShared
	}
	e = append(e, kind)
	e.Number(s.number)
	e.Number(it.stake.seq)
	e.how(Delivery{QoS: it.qos, Retain: it.retain, IDs: it.ids, Share: it.share})
	if body > 0 {
		e.Number(body)
	} else {
		e.Message(it.msg)
	}
	return e
}

// numbers encodes the records that are nothing but numbers.
func (s *Session) numbers(kind byte, n uint64) []byte {
	e := Encoder{kind}
	e.Number(s.number)
	e.Number(n)
	return e
}

func (s *Session) pullRecord(p *pull) journal.Change {
	e := Encoder{kindPull}
	e.Number(s.number)
	e.Text(p.filter)
	e.how(Delivery{QoS: p.qos, IDs: p.ids})
	e.Number(p.seq)
	e.Text(p.after)
	return journal.Change{ID: p.marker, Value: e}
}

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

// PendingReplay is a filter whose retained messages are still owed, but for users' own topics up to one.
type PendingReplay struct{ Filter, After string }

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
	e.msg.Rebase(l.now)
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
func (l *Loader) Restore(s *Session) ([]PendingReplay, error) {
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
func (s *Session) restorePulls(p *parts) (list []PendingReplay) {
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
		list = append(list, PendingReplay{x.filter, x.after})
	}
	return list
}

// HasShared says whether a session has messages that are another member's of a shared subscription
// once it ends.
func (l *Loader) HasShared(number uint64) bool {
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
	it.msg.Rebase(now)
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
func (s *Session) readAhead(o *LocalConsumer) {
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
			items[i].msg.Rebase(now)
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
func (s *Session) unread(o *LocalConsumer, err error) {
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
