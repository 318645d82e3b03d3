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

// A durable session outlives the process. It has a record for each waiting or unacknowledged message of QoS 1 and 2,
// from before the publisher's acknowledgement until the subscriber's, and one for each state of QoS 2 that an answer
// depends on.

// RecordLog keeps a durable session's records.
type RecordLog interface {
	// ID names a new record.
	ID() uint64
	// Commit makes changes durable, all or none. It never blocks. done is called with the outcome, but not by Commit itself; it may
	// be nil.
	Commit(changes []journal.RecordChange, done func(error))
	// Forget deletes records some time soon; 0 is none.
	Forget(records ...uint64)
	// Read hands over the values of records, in order, each valid during the call.
	Read(records []uint64, each func(i int, value []byte) error) error
}

// deliveryRecord is the record of an item.
type deliveryRecord struct {
	id       uint64      // 0: not on disk
	seq      uint64      // place in the session's order
	body     *SharedBody // nil: the record contains the message
	pending  bool        // not committed yet
	position uint64      // in the queue, while pending
	waits    bool        // the message must not be sent while pending
	over     bool        // the message was delivered or dropped
	onDisk   bool        // the message is in the diskQueue
	retained bool        // the message comes from a replay
}

// SharedBody is the record of a message that several sessions share. It is deleted with the last of their delivery records.
type SharedBody struct {
	record uint64
	users  atomic.Int32
}

// NewSharedBody makes a body for a number of delivery records, and the change that stores it.
func NewSharedBody(m *Message, log RecordLog, users int) (*SharedBody, journal.RecordChange) {
	b := &SharedBody{record: log.ID()}
	b.users.Store(int32(users))
	e := append(make(Encoder, 0, m.Weight()+32), kindBody)
	e.Message(m)
	return b, journal.RecordChange{ID: b.record, Value: e}
}

// MakeDurable makes an empty session outlive the process. Its number is never used for another one.
func (s *Session) MakeDurable(number uint64, log RecordLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number, s.log = number, log
}

// Durable reports whether the session outlives the process.
func (s *Session) Durable() bool { return s.log != nil }

// packetID is the same each time that a message is sent, also after a restart, so that the client can't confuse it with another.
func packetID(seq uint64) uint16 { return uint16((seq-1)%math.MaxUint16) + 1 }

// A message of QoS 1 may be sent before it is on disk. After a crash nothing is known of it, and the client may acknowledge it
// late, so no later message may have its packet id. After each restart the order leaps beyond what may have been sent, so far that
// the ids of a dozen crashes are different, and no message is sent that would not be known to be one after the leap.
const (
	restartLeap = 40503 // of math.MaxUint16 packet ids: the golden section, whose multiples keep apart
	maxUnstored = 2048  // messages that may be sent before one of them is on disk
)

// UncommittedDelivery is a message in the queue of a durable session whose record is not committed yet. The caller commits Change,
// and then calls Committed.
type UncommittedDelivery struct {
	s  *Session
	it delivery
}

// EnqueueDurable queues a QoS 1 or 2 message in a durable session. Only one that is accepted is pending.
func (s *Session) EnqueueDurable(m *Message, d DeliveryOptions) (UncommittedDelivery, EnqueueResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return UncommittedDelivery{}, EnqueueEnded
	}
	if !s.makeRoom(m) {
		return UncommittedDelivery{}, s.refuse(m, DropQueueFull)
	}
	s.noteLive(m.Topic)
	return s.pushDurable(m, d, false), EnqueueAccepted
}

func (s *Session) pushDurable(m *Message, d DeliveryOptions, retained bool) UncommittedDelivery {
	s.seq++
	it := newDelivery(m, d)
	it.record = &deliveryRecord{seq: s.seq, pending: true, waits: d.Stored, position: s.queue.end(), retained: retained}
	if it.record.id = journal.FirstSequenced + s.seq; !s.diskOnly() {
		it.record.id = s.log.ID()
	}
	if s.fitsMemory(m) {
		s.push(it, d.Batch)
	} else {
		it.record.onDisk = true
		s.disk.add(s.seq, s.weight(m), m.came)
		s.disk.pending[s.seq] = it
	}
	return UncommittedDelivery{s: s, it: it}
}

// SharesBody reports whether the message may be in a body.
func (p UncommittedDelivery) SharesBody() bool { return !p.s.diskOnly() }

// Change stores the delivery record. body is nil if the record is to contain the message.
func (p UncommittedDelivery) Change(body *SharedBody) journal.RecordChange {
	s, r := p.s, p.it.record
	if s.diskOnly() {
		return journal.RecordChange{ID: r.id, Value: s.encodeSequenced(p.it)}
	}
	var bodyID uint64
	if body != nil {
		bodyID = body.record
		s.mu.Lock()
		r.body = body
		s.mu.Unlock()
	}
	return journal.RecordChange{ID: r.id, Value: s.encodeDelivery(p.it, bodyID)}
}

// Committed takes the outcome of the commit. After an error the message is dropped, if it wasn't sent yet.
func (p UncommittedDelivery) Committed(err error) {
	s, r := p.s, p.it.record
	s.mu.Lock()
	defer s.mu.Unlock()
	r.pending = false
	delete(s.disk.pending, r.seq)
	if err == nil {
		s.stored = max(s.stored, r.seq)
	}
	switch {
	case err != nil:
		r.id, r.body = 0, nil
		if !s.takeBack(p.it) {
			return
		}
	case s.ended || r.over:
		s.deleteRecord(p.it)
		return
	}
	if s.consumer != nil {
		s.consumer.wake(nil) // for the message, or for what comes after it
	}
}

// takeBack removes a message that could not be stored. It reports false if the message stays: it was sent at QoS 1, or
// it is a retained one, which is fetched again after a crash.
func (s *Session) takeBack(it delivery) bool {
	r := it.record
	if s.ended || r.over || !r.onDisk && r.position < s.queue.first || r.retained && it.qos == 1 {
		return false
	}
	s.forgetLive(it.msg.Topic)
	if r.onDisk {
		s.disk.remove(r.seq)
	} else {
		s.queue.evict(r.position)
	}
	return true
}

// deleteRecord deletes the record of a message that was delivered or dropped, or, if it is pending, has Committed do so.
// While a retained message of the topic could still be fetched, the record stays to say that a newer one came.
func (s *Session) deleteRecord(it delivery) {
	r := it.record
	if r == nil {
		return
	}
	if r.over = true; r.pending {
		return
	}
	ids := r.take(nil)
	if len(ids) > 0 && !r.retained && s.live.has(it.msg.Topic, 0) {
		ids[0] = s.keepLive(it.msg.Topic, r.seq, ids[0])
	}
	s.log.Forget(ids...)
}

// take appends the records to delete for a message, unless they are pending.
func (r *deliveryRecord) take(to []uint64) []uint64 {
	if r == nil || r.pending || r.id == 0 {
		return to
	}
	to = append(to, r.id)
	r.id = 0
	return r.leaveBody(to)
}

func (r *deliveryRecord) leaveBody(to []uint64) []uint64 {
	if r.body != nil && r.body.users.Add(-1) == 0 {
		to = append(to, r.body.record)
	}
	r.body = nil
	return to
}

// records takes all records that the session has on disk.
func (s *Session) records() (ids []uint64) {
	for it := range s.queue.all {
		ids = it.record.take(ids)
	}
	ids = s.disk.records(ids)
	for _, x := range s.inflight.byID {
		ids = x.record.take(ids)
	}
	for id, in := range s.inbound.byID {
		if in.received {
			ids = append(ids, in.record)
			s.inbound.remove(id)
		}
	}
	for _, p := range s.replays {
		ids = append(ids, p.record)
	}
	return append(s.live.records(ids), s.progress)
}

// forget deletes records. A session without a log has none.
func (s *Session) forget(records ...uint64) {
	if s.log != nil {
		s.log.Forget(records...)
	}
}

// StoreMissed stores how many messages a durable session had no room for, if more are to count over a restart. It is called now and then: a
// session that is full drops as fast as others publish, and costs no writes by that.
func (s *Session) StoreMissed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log != nil && !s.ended && s.missed > s.missedStored {
		s.storeProgress()
	}
}

// storeProgress stores which messages were sent: only those are sent with DUP after a restart. It stores what was missed with it.
func (s *Session) storeProgress() {
	if s.progress == 0 {
		s.progress = s.log.ID()
	}
	s.log.Commit([]journal.RecordChange{{ID: s.progress, Value: s.encode(kindProgress, s.sent, uint64(s.missed))}}, nil)
	s.missedStored = s.missed
}

// storeRelease stores a PUBREC before it is answered: with the PUBREL the client forgets the packet id, and must never get
// the message again.
func (s *Session) storeRelease(x *inflightMessage) {
	if x.releasing {
		return
	}
	x.releasing = true
	topic := "" // unless a replay needs to know that a message of the topic came
	if !x.record.retained && s.live.has(x.msg.Topic, 0) {
		topic = x.msg.Topic
	}
	put := journal.RecordChange{ID: x.record.id, Value: s.encodeTopic(kindReleased, x.record.seq, topic)}
	s.log.Commit([]journal.RecordChange{put}, func(err error) { s.releaseStored(x, err) })
}

func (s *Session) releaseStored(x *inflightMessage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.releasing = false
	if s.inflight.byID[x.id] != x {
		return
	}
	w, _ := s.consumer.(*Writer)
	if err != nil {
		if w != nil {
			w.Close() // the client sends its PUBREC again on a new connection
		}
		return
	}
	x.released = true
	s.log.Forget(x.record.leaveBody(nil)...)
	if w != nil && w.started() { // nothing may be sent before the CONNACK; next sends it after that
		w.Control(Ack{Type: typePubrel >> 4, ID: x.id}.Append(nil, s.version), nil)
	}
}

// A session with Limits.Memory has in memory what it sends next. The rest waits on disk only: of each message there, memory
// has the weight and its place in the journal's index. The records' ids are a sequence of the journal: they follow from the messages' places in
// the session's order.

// diskQueue counts the messages that wait after the queue, on disk only.
type diskQueue struct {
	blocks   map[uint64]*diskQueueBlock // by place of the first message, divided by diskQueueBlockLen
	next     uint64                     // no message before it
	messages int
	bytes    int                 // by weight
	pending  map[uint64]delivery // not committed yet
	reading  bool
}

const diskQueueBlockLen = 256

// diskQueueBlock has the messages whose places have the same quotient by diskQueueBlockLen.
type diskQueueBlock struct {
	messages       int
	oldest, newest time.Time                 // when the broker took them
	weights        [diskQueueBlockLen]uint32 // 0: no message
}

func (q *diskQueue) add(seq uint64, weight int, came time.Time) {
	if q.blocks == nil {
		q.blocks, q.pending = make(map[uint64]*diskQueueBlock), make(map[uint64]delivery)
	}
	g := q.blocks[seq/diskQueueBlockLen]
	if g == nil {
		g = &diskQueueBlock{oldest: came, newest: came}
		q.blocks[seq/diskQueueBlockLen] = g
	}
	if came.Before(g.oldest) {
		g.oldest = came
	}
	if came.After(g.newest) {
		g.newest = came
	}
	if q.messages == 0 || seq < q.next {
		q.next = seq
	}
	g.weights[seq%diskQueueBlockLen] = uint32(weight)
	g.messages++
	q.messages++
	q.bytes += weight
}

func (q *diskQueue) has(seq uint64) bool {
	g := q.blocks[seq/diskQueueBlockLen]
	return g != nil && g.weights[seq%diskQueueBlockLen] > 0
}

// remove takes out a message that is there.
func (q *diskQueue) remove(seq uint64) {
	g := q.blocks[seq/diskQueueBlockLen]
	q.bytes -= int(g.weights[seq%diskQueueBlockLen])
	q.messages--
	g.weights[seq%diskQueueBlockLen] = 0
	if g.messages--; g.messages == 0 {
		delete(q.blocks, seq/diskQueueBlockLen)
	}
	delete(q.pending, seq)
}

// from is the first message from a place on, of which there must be one.
func (q *diskQueue) from(seq uint64) uint64 {
	for !q.has(seq) {
		if seq++; q.blocks[seq/diskQueueBlockLen] == nil {
			seq += diskQueueBlockLen - seq%diskQueueBlockLen
		}
	}
	return seq
}

// first is the oldest message; there must be one.
func (q *diskQueue) first() uint64 {
	q.next = q.from(q.next)
	return q.next
}

// records lists those of the messages that are not pending.
func (q *diskQueue) records(to []uint64) []uint64 {
	seq := q.next
	for range q.messages {
		seq = q.from(seq)
		if _, pending := q.pending[seq]; !pending {
			to = append(to, journal.FirstSequenced+seq)
		}
		seq++
	}
	return to
}

// InMemory counts the waiting messages that are in memory.
func (s *Session) InMemory() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.live
}

// diskOnly reports whether the session keeps messages on disk only.
func (s *Session) diskOnly() bool { return s.log != nil && s.limits.Memory > 0 }

// fitsMemory reports whether a durable message may wait in memory.
func (s *Session) fitsMemory(m *Message) bool {
	return !s.diskOnly() || s.disk.messages == 0 && s.queue.durableBytes()+s.weight(m) <= s.limits.Memory
}

// memoryFull reports whether there is no room in memory for a QoS 0 message.
func (s *Session) memoryFull(m *Message) bool {
	return s.diskOnly() && s.queue.live > 0 && s.queue.bytes+s.weight(m) > 2*s.limits.Memory
}

// evictFromDisk drops the oldest message on disk, which there must be.
func (s *Session) evictFromDisk() {
	seq := s.disk.first()
	it, pending := s.disk.pending[seq]
	s.disk.remove(seq)
	if pending {
		it.record.over = true // Committed deletes it
	} else {
		s.log.Forget(journal.FirstSequenced + seq)
	}
}

// dropOldOnDisk drops what is too old once nothing waits in memory. A segment is dropped as a whole when its newest message
// is too old.
func (s *Session) dropOldOnDisk(now time.Time) {
	for s.queue.live == 0 && s.disk.messages > 0 {
		g := s.disk.blocks[s.disk.first()/diskQueueBlockLen]
		if now.Sub(g.newest) <= s.limits.MaxAge {
			return
		}
		for range g.messages {
			s.dropOldest(DropTooOld)
		}
	}
}

const (
	readMessages = 256         // that are read from disk at a time, at most
	readBytes    = 64 << 10    // of them, about
	readRetry    = time.Second // after an error
)

// readAhead fills the queue from disk when half of the memory is free. It unlocks the session while it reads.
func (s *Session) readAhead(c *LocalConsumer) {
	q := &s.disk
	if q.messages == 0 || q.reading || s.queue.durableBytes() > s.limits.Memory/2 || !s.inflight.hasRoom(s.window) {
		return
	}
	list := s.nextOnDisk()
	if len(list) == 0 {
		return
	}
	now := s.now()
	q.reading = true
	s.mu.Unlock()
	items, err := s.read(list, now)
	s.mu.Lock()
	q.reading = false
	for i, seq := range list {
		if s.ended || !q.has(seq) { // dropped meanwhile
			continue
		}
		if items[i].msg == nil {
			s.readFailed(c, err)
			return
		}
		// The wall clock may have been set since the message came: what the segment says is more certain.
		g, m := q.blocks[seq/diskQueueBlockLen], items[i].msg
		if m.came.Before(g.oldest) {
			m.came = g.oldest
		} else if m.came.After(g.newest) {
			m.came = g.newest
		}
		q.remove(seq)
		s.push(items[i], nil)
	}
}

// nextOnDisk lists the next messages to read. One whose commit is pending ends the list, or, if it is the first, is queued:
// it needn't be read.
func (s *Session) nextOnDisk() (list []uint64) {
	q := &s.disk
	bytes := 0
	for seq := q.first(); len(list) < min(q.messages, readMessages) && bytes < readBytes; seq++ {
		seq = q.from(seq)
		if it, pending := q.pending[seq]; pending {
			if len(list) == 0 {
				q.remove(seq)
				it.record.onDisk, it.record.position = false, s.queue.end()
				s.push(it, nil)
			}
			break
		}
		list = append(list, seq)
		bytes += int(q.blocks[seq/diskQueueBlockLen].weights[seq%diskQueueBlockLen])
	}
	return list
}

// read reads messages from disk, up to the first that can't be read.
func (s *Session) read(list []uint64, now time.Time) (items []delivery, err error) {
	ids := make([]uint64, len(list))
	for i, seq := range list {
		ids[i] = journal.FirstSequenced + seq
	}
	items = make([]delivery, len(list))
	err = s.log.Read(ids, func(i int, value []byte) error {
		_, e, err := decodeSequenced(value)
		if err == nil && e.seq != list[i] {
			err = errRecord
		}
		if err == nil {
			items[i] = e.delivery
			items[i].record = &deliveryRecord{id: ids[i], seq: e.seq}
			items[i].msg.Rebase(now)
		}
		return err
	})
	return items, err
}

// readFailed drops a message that is damaged; any other error may go away.
func (s *Session) readFailed(c *LocalConsumer, err error) {
	if s.queue.live > 0 {
		return // the messages before it go first
	}
	if errors.Is(err, journal.ErrDamaged) {
		s.dropOldest(DropDamaged)
		c.wake(nil)
		return
	}
	time.AfterFunc(readRetry, func() { c.wake(nil) })
}

// Kinds of a session's records: the first byte of each. Other records in the same journal have kinds from FirstOtherKind
// on.
const (
	kindDelivery   byte = iota + 1 // a message: session, seq, delivery, message
	kindShared                     // a message that is in a body: session, seq, delivery, id of the body
	kindBody                       // a message of several sessions
	kindReleased                   // a QoS 2 message after its PUBREC: session, seq, topic if a replay needs it
	kindInbound                    // a QoS 2 publish of the client's: session, packet id
	kindProgress                   // how far the queue was sent: session, seq, how many messages there was no room for
	kindReplay                     // retained messages that are owed: session, filter, delivery, seq at the subscription, topic after which
	kindSequenced                  // a message that may be on disk only: session, seq, delivery, message, checksum
	kindLive                       // a message that was delivered during a replay: session, seq, topic
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

// Flag appends a boolean.
func (e *Encoder) Flag(b bool) {
	if b {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

// Time appends a time, to the millisecond. The zero time stays zero.
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
	var format byte
	if p.PayloadFormat != nil {
		format = 1 + *p.PayloadFormat
	}
	*e = append(*e, m.QoS, format)
	e.Flag(m.Retain)
	e.Text(m.Topic)
	e.Number(uint64(len(m.Payload)))
	*e = append(*e, m.Payload...)
	e.Text(m.From)
	e.Time(m.At)
	e.Number(0) // not used
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

// Bits of a delivery.
const (
	flagRetain = 1 << iota
	flagShare
)

// delivery appends how a message is delivered.
func (e *Encoder) delivery(it delivery) {
	var flags byte
	if it.retain {
		flags |= flagRetain
	}
	if it.share != nil {
		flags |= flagShare
	}
	*e = append(*e, it.qos, flags)
	e.Number(uint64(len(it.ids)))
	for _, id := range it.ids {
		e.Number(uint64(id))
	}
	if it.share != nil {
		e.Text(*it.share)
	}
}

// encode makes a record of numbers.
func (s *Session) encode(kind byte, numbers ...uint64) []byte {
	e := Encoder{kind}
	e.Number(s.number)
	for _, n := range numbers {
		e.Number(n)
	}
	return e
}

// encodeTopic makes the record of a message of which only the topic is still needed.
func (s *Session) encodeTopic(kind byte, seq uint64, topic string) []byte {
	e := Encoder(s.encode(kind, seq))
	e.Text(topic)
	return e
}

// encodeDelivery makes an item's record. body is the id of the record that has the message; 0: it is in this one.
func (s *Session) encodeDelivery(it delivery, body uint64) []byte {
	e := make(Encoder, 0, it.msg.Weight()+64)
	kind := kindDelivery
	if body > 0 {
		kind = kindShared
	}
	e = append(e, kind)
	e.Number(s.number)
	e.Number(it.record.seq)
	e.delivery(it)
	if body > 0 {
		e.Number(body)
	} else {
		e.Message(it.msg)
	}
	return e
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSequenced makes the record of an item in a sequence. It ends with a checksum: it is read alone, and the journal's
// checksum is that of a whole commit.
func (s *Session) encodeSequenced(it delivery) []byte {
	e := make(Encoder, 0, it.msg.diskSize()+64)
	e = append(e, kindSequenced)
	e.Number(s.number)
	e.Number(it.record.seq)
	it.share = nil
	e.delivery(it)
	e.Message(it.msg)
	return binary.LittleEndian.AppendUint32(e, crc32.Checksum(e, castagnoli))
}

// Decoder takes a record apart. After the first error all values are zero, and End returns an error.
type Decoder struct {
	b   []byte
	bad bool
}

var (
	errRecord = errors.New("the record can't be decoded")
	errKind   = errors.New("the record is of an unknown kind: it may be a newer version's")
	errBody   = errors.New("the record of a queued message is missing")
)

// NewDecoder makes a decoder. The values that it returns don't refer to b.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// End returns an error if something was missing, or is left over.
func (d *Decoder) End() error {
	if d.bad || len(d.b) > 0 {
		return errRecord
	}
	return nil
}

func (d *Decoder) fail() { d.bad, d.b = true, nil }

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// Flag takes a boolean.
func (d *Decoder) Flag() bool { return d.Byte() != 0 }

// Number takes a number.
func (d *Decoder) Number() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[used:]
	return n
}

func (d *Decoder) bytes() []byte {
	n := d.Count()
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
		d.fail()
		return 0
	}
	return int(n)
}

// Time takes a time.
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
	if format := d.Byte(); format > 0 {
		format--
		p.PayloadFormat = &format
	}
	m.Retain = d.Flag()
	m.Topic = d.Text()
	m.Payload = append([]byte{}, d.bytes()...)
	m.From = d.Text()
	m.At = d.Time()
	_ = d.Number() // not used
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

func (d *Decoder) delivery() (it delivery) {
	it.qos = d.Byte()
	flags := d.Byte()
	it.retain = flags&flagRetain != 0
	for range d.Count() {
		it.ids = append(it.ids, uint32(d.Number()))
	}
	if flags&flagShare != 0 {
		share := d.Text()
		it.share = &share
	}
	if it.qos > 2 || flags > flagRetain|flagShare {
		d.bad = true
	}
	return it
}

// loadedDelivery is the record of an item as it was read.
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
	case kind == 0 || kind > kindLive:
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
	p := l.session(s.number)
	delete(l.sessions, s.number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress, s.sent, s.seq = p.progress, p.sent, max(p.sent, p.last)
	s.missed, s.missedBefore, s.missedStored = p.missed, p.missed, p.missed
	s.disk = p.disk
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
	if !s.diskOnly() { // else its consumer is in this process
		s.seq += restartLeap
	}
	return s.restoreReplays(p), nil
}

// complete gives an item its message and its record.
func (l *RecordLoader) complete(e *loadedDelivery) error {
	e.record = &deliveryRecord{id: e.id, seq: e.seq}
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

// restore puts an item into the inflight window, if it was sent, or into the queue.
func (s *Session) restore(e loadedDelivery, now time.Time) {
	s.seq = max(s.seq, e.seq)
	e.msg.Rebase(now)
	switch {
	case (e.released || e.seq <= s.sent) && s.inflight.byID[packetID(e.seq)] == nil:
		s.inflight.add(e.delivery).released = e.released
	case e.msg.Expired(now):
		s.discard(e.delivery, DropExpired)
	default:
		s.push(e.delivery, nil)
	}
}

// restoreReplays restores what is owed of the retained messages, and of which of their topics newer messages have come.
func (s *Session) restoreReplays(p *loadedSession) (list []PendingReplay) {
	slices.SortFunc(p.live, func(a, b loadedTopic) int { return cmp.Compare(a.seq, b.seq) })
	s.replays = p.replays
	for _, x := range p.live {
		if len(s.replays) == 0 {
			s.log.Forget(x.record)
			continue
		}
		h := s.live.hash(x.topic)
		s.log.Forget(s.live.last[h].record)
		s.live.count++
		s.live.last[h] = liveTopic{s.live.count, x.record}
	}
	for _, x := range s.replays {
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
