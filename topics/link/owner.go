package link

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
)

// Owner is the writing side of a map.
type Owner struct {
	dir      Direction
	rand     func() uint64
	lineage  Lineage
	seq      uint64
	acked    uint64
	gcFloor  uint64
	verFloor uint64

	keys    map[string]*node
	sorted  table // the same keys, in order
	order   list
	unacked *node // first in order with seq > acked
	dirty   int   // how many from there on
	live    int
	size    int // bytes of live entries
	sum     sum
	log     ledger

	limits limits
	talk   talk
}

// limits of what is sent at once. Tests make them small.
type limits struct {
	bytes   int // of a message's entries
	entries int // in a message
	window  int // messages sent and not answered
}

func defaultLimits() limits {
	return limits{bytes: MaxMessage - messageOverhead, entries: 1 << 14, window: 4}
}

// NewOwner begins an empty map under a lineage of its own. rand must be
// unpredictable enough that two owners never draw the same number.
func NewOwner(dir Direction, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.log = ledger{dirty: true, reset: true}
	return o
}

// NewProjection begins an empty map that its host derives from what is stored elsewhere, and derives
// again when it is restarted: it has no journal.
func NewProjection(dir Direction, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.log.none = true
	return o
}

func newOwner(dir Direction, rand func() uint64) *Owner {
	return &Owner{dir: dir, rand: rand, keys: make(map[string]*node), limits: defaultLimits()}
}

// RestoreOwner goes on from what was committed. The error says that the store's
// content can't have come from journals.
func RestoreOwner(dir Direction, s State, entries iter.Seq[Entry], rand func() uint64) (*Owner, error) {
	if s.Lineage.N == 0 {
		return nil, fmt.Errorf("restore owner of %v: no lineage", dir)
	}
	o := newOwner(dir, rand)
	o.lineage, o.seq, o.gcFloor, o.verFloor = s.Lineage, s.Seq, s.GCFloor, s.VerFloor
	var nodes []*node
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore owner of %v: %w", dir, err)
		}
		nodes = append(nodes, &node{Entry: e})
	}
	slices.SortFunc(nodes, func(a, b *node) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	var last uint64
	for _, n := range nodes {
		if _, twice := o.keys[n.Key]; twice || n.Seq <= last || n.Seq > s.Seq {
			return nil, fmt.Errorf("restore owner of %v: key %s has seq %d after %d of %d", dir, n.Key, n.Seq, last, s.Seq)
		}
		last = n.Seq
		o.keys[n.Key] = n
		o.sorted.put(n.Key, nil)
		o.append(n)
	}
	o.setAcked(min(s.Acked, s.Seq))
	return o, nil
}

// Put writes a key. It returns the entry as stored, and whether that was a
// write: a value that the key has already, with the same Meta, is none.
//
// With Ver 0 the owner counts the key's versions itself, and they never fall,
// not even after the key was deleted and forgotten. Otherwise Ver is the
// caller's word, and so is that it rises.
func (o *Owner) Put(e Entry) (Entry, bool, error) { return o.PutShared(e, "") }

// PutShared is Put of a value of which many have the end in common. The owner holds that
// as it is given, and so once for all of them; readers get whole values.
func (o *Owner) PutShared(e Entry, tail string) (Entry, bool, error) {
	e.Deleted = false
	if head := len(e.Value) - len(tail); head < 0 || string(e.Value[head:]) != tail {
		tail = ""
	}
	if err := e.check(); err != nil {
		return Entry{}, false, err
	}
	e.Origin = cut(e.Origin)
	old := o.keys[e.Key]
	if old != nil && !old.Deleted && old.Meta == e.Meta && (e.Ver == 0 || e.Ver == old.Ver) && old.has(e.Value) {
		return old.entry(), false, nil
	}
	if e.Ver == 0 {
		e.Ver = o.nextVer(old)
	}
	return o.write(old, e, tail), true, nil
}

// Delete removes a key and returns its tombstone; false if there was no such
// key.
func (o *Owner) Delete(key string, ts int64, origin string) (Entry, bool) {
	old := o.keys[key]
	if old == nil || old.Deleted {
		return Entry{}, false
	}
	e := Entry{Key: key, Ver: old.Ver + 1, TS: ts, Origin: cut(origin), Deleted: true}
	return o.write(old, e, ""), true
}

func (o *Owner) nextVer(old *node) uint64 {
	if old != nil {
		return old.Ver + 1
	}
	return o.verFloor + 1
}

func (o *Owner) write(old *node, e Entry, tail string) Entry {
	if old != nil {
		e.Key = old.Key // one copy of the text for map and entry
		o.unlink(old)
	}
	o.seq++
	e.Seq = o.seq
	n := old
	if n == nil || o.talk.full != nil { // what a FULL is being made of stays as it is
		n = new(node)
		o.keys[e.Key] = n
	}
	if old == nil {
		o.sorted.put(e.Key, nil)
	}
	n.keep(e, tail)
	o.append(n)
	o.log.dirty = true
	o.log.put(e)
	o.talk.inStep = false
	return e
}

// append puts a node, whose seq is the highest, at the end of the order.
func (o *Owner) append(n *node) {
	o.order.push(n)
	if o.unacked == nil {
		o.unacked = n
	}
	if o.talk.next == nil {
		o.talk.next = n
	}
	o.dirty++
	if !n.Deleted {
		o.live++
		o.size += n.weight()
		o.sum.add(n.hash())
	}
}

// unlink takes a node out of everything but the map, where its successor will
// take its place.
func (o *Owner) unlink(n *node) {
	if o.unacked == n {
		o.unacked = n.next
	}
	if o.talk.next == n {
		o.talk.next = n.next
	}
	if n.Seq > o.acked {
		o.dirty--
	}
	if !n.Deleted {
		o.live--
		o.size -= n.weight()
		o.sum.sub(n.hash())
	}
	o.order.remove(n)
}

// forget drops a tombstone. That may wait for a commit that has other reasons:
// a tombstone that comes back after a crash is dropped again.
func (o *Owner) forget(n *node) {
	o.unlink(n)
	delete(o.keys, n.Key)
	o.sorted.del(n.Key)
	o.gcFloor = max(o.gcFloor, n.Seq)
	o.verFloor = max(o.verFloor, n.Ver)
	o.log.drop(n.Key)
}

// setAcked moves the mark of what the replica has. Upwards it drops the
// tombstones on its way (rule 5); downwards the replica was rolled back.
func (o *Owner) setAcked(a uint64) {
	for n := o.unacked; n != nil && n.Seq <= a; n = o.unacked {
		o.unacked = n.next
		o.dirty--
		if n.Deleted {
			o.acked = n.Seq // it counts as acknowledged while it goes
			o.forget(n)
		}
	}
	for n := o.before(o.unacked); n != nil && n.Seq > a; n = n.prev {
		o.unacked = n
		o.dirty++
	}
	o.acked = a
}

func (o *Owner) before(n *node) *node {
	if n == nil {
		return o.order.tail
	}
	return n.prev
}

// newLineage begins one that is later than both the owner's and seen. Sequence numbers go on: the replica can enter
// it by ADOPT or FULL only, so at this seq or later, and what lies below is
// never asked for. Hence no entry is stored anew, and no tombstone is needed.
func (o *Owner) newLineage(seen Lineage) {
	if !seen.after(o.lineage) {
		seen = o.lineage
	}
	o.lineage = Lineage{N: seen.next(), Nonce: o.rand()}
	o.setAcked(o.seq)
	o.setAcked(0)
	o.talk.full = nil
	o.talk.inStep = false
	o.log.dirty = true
}

// TakeJournal returns what is to be committed before Messages are sent.
func (o *Owner) TakeJournal() Journal {
	return o.log.take(o.state())
}

func (o *Owner) state() State {
	return State{Lineage: o.lineage, Seq: o.seq, Acked: o.acked, GCFloor: o.gcFloor, VerFloor: o.verFloor}
}

// Get returns a live entry.
func (o *Owner) Get(key string) (Entry, bool) {
	if n := o.keys[key]; n != nil && !n.Deleted {
		return n.entry(), true
	}
	return Entry{}, false
}

// Range calls fn for live entries in order of their keys, until it says false.
func (o *Owner) Range(prefix string, fn func(Entry) bool) { o.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (o *Owner) RangeFrom(prefix, from string, fn func(Entry) bool) {
	o.sorted.scan(max(prefix, from), func(key, _ []byte) bool {
		if !bytes.HasPrefix(key, []byte(prefix)) {
			return false
		}
		n := o.keys[string(key)]
		return n.Deleted || fn(n.entry())
	})
}

// Keys returns the live keys in order.
func (o *Owner) Keys(prefix string) []string { return keysOf(o.Range, prefix) }

func keysOf(all func(string, func(Entry) bool), prefix string) (keys []string) {
	all(prefix, func(e Entry) bool {
		keys = append(keys, e.Key)
		return true
	})
	return keys
}

// Len counts live keys.
func (o *Owner) Len() int { return o.live }

// Bytes counts those of live keys and values.
func (o *Owner) Bytes() int { return o.size }

// Dirty counts the keys, deleted ones included, that the replica is not known
// to have as they are.
func (o *Owner) Dirty() int { return o.dirty }

// Oldest is the time of the oldest of them; false if there is none.
func (o *Owner) Oldest() (ts int64, ok bool) {
	if o.unacked == nil {
		return 0, false
	}
	return o.unacked.TS, true
}

// Digest of the live entries.
func (o *Owner) Digest() Digest { return o.sum.digest() }

// Lineage under which the map is numbered.
func (o *Owner) Lineage() Lineage { return o.lineage }

// Seq is the number of the last write.
func (o *Owner) Seq() uint64 { return o.seq }

// Acked is the number up to which the replica has the map.
func (o *Owner) Acked() uint64 { return o.acked }

// node is an entry in the owner's order. While a FULL is being sent, which holds
// them, its entry is not modified: a write makes a new node.
type node struct {
	Entry             // of its value what comes before tail
	tail       string // the end of the value, which others share
	prev, next *node
}

// keep takes an entry whose value ends in tail.
func (n *node) keep(e Entry, tail string) {
	n.Entry, n.tail = e, tail
	if tail != "" {
		n.Value = bytes.Clone(e.Value[:len(e.Value)-len(tail)])
	}
}

// entry is the whole of it.
func (n *node) entry() Entry {
	e := n.Entry
	if n.tail != "" {
		e.Value = append(append(make([]byte, 0, len(e.Value)+len(n.tail)), e.Value...), n.tail...)
	}
	return e
}

func (n *node) hash() sum {
	e := n.entry()
	return e.hash()
}

func (n *node) weight() int { return n.Entry.weight() + len(n.tail) }
func (n *node) size() int   { return n.Entry.size() + len(n.tail) }

// has says whether a value is the entry's.
func (n *node) has(value []byte) bool {
	head := len(value) - len(n.tail)
	return head >= 0 && string(value[head:]) == n.tail && bytes.Equal(value[:head], n.Value)
}

// list holds an owner's nodes by rising seq. It is the outbox: everything from
// the first node that is not acknowledged to the tail is still to be told.
type list struct {
	head, tail *node
	len        int
}

func (l *list) push(n *node) {
	n.prev, n.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

func (l *list) remove(n *node) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.tail = n.prev
	}
	n.prev, n.next = nil, nil // a node that is still held must not hold the others
	l.len--
}

// phase is where an owner stands in the conversation of one connection.
type phase uint8

const (
	away      phase = iota // no connection
	greeting               // HELLO, until a SEEN says where the replica is
	adopting               // ADOPT, until the replica says that it took the lineage
	filling                // FULL, part by part
	streaming              // DELTAs
	refused                // nothing: the map is more than the replica takes
)

// talk is what an owner remembers of a connection. None of it is stored.
type talk struct {
	n       uint64
	goal    uint64 // the owner's seq when the connection began
	phase   phase
	said    bool // the HELLO or ADOPT of this phase was sent
	inStep  bool
	refused string // why; phase refused, and while it is asked again

	offer chunk // adopting: the map that ADOPT speaks of

	sent   uint64  // streaming: DELTAs were sent up to here
	next   *node   // first in order with seq > sent
	flight []chunk // DELTAs sent and not answered, oldest first

	full *fill // filling; also greeting, when one was begun and may be resumed
}

// chunk is something under way that takes the replica to upto. Where that is
// the owner's map as it then was, its digest is known.
type chunk struct {
	upto   uint64
	digest *Digest
}

// fill is a FULL under way: the map as it was when it began.
type fill struct {
	id     uint64
	upto   uint64
	digest Digest
	nodes  []*node
	cuts   []int // where each part ends
	sent   int   // parts
	held   int   // parts that the replica has
}

// Connect begins a conversation. n must differ from those of all earlier
// connections, so that what is left of them is not taken for an answer.
func (o *Owner) Connect(n uint64) { o.talk = talk{n: n, goal: o.seq, phase: greeting} }

// Disconnect ends it.
func (o *Owner) Disconnect() { o.talk = talk{} }

// InStep says that in this connection the replica's map was found equal, and
// that nothing was written since.
func (o *Owner) InStep() bool { return o.talk.inStep }

// CaughtUp says that in this connection the replica has got all that was written
// before it began. Unlike InStep it comes true while writing goes on, however often that is.
func (o *Owner) CaughtUp() bool {
	return o.talk.phase == streaming && o.acked >= o.talk.goal
}

// Waiting says that something sent has no answer yet: the host then runs the
// resend timer, anew with each message sent or received.
func (o *Owner) Waiting() bool {
	switch t := &o.talk; t.phase {
	case greeting, adopting:
		return t.said
	case filling:
		return t.full.sent > 0
	case streaming:
		return len(t.flight) > 0
	case refused:
		return true
	}
	return false
}

// Resend is the resend timer. It asks where the replica is, rather than
// repeat what may only be slow; the answer decides what is sent again.
func (o *Owner) Resend() {
	if o.Waiting() {
		t := &o.talk
		t.phase, t.said, t.flight, t.next = greeting, false, nil, nil
	}
}

// Step takes a SEEN. One of another connection is ignored. An error means that
// the message can't be meant for this owner; it changes nothing.
func (o *Owner) Step(m Message) error {
	if m.Type != Seen || m.Map != o.dir {
		return fmt.Errorf("%w: %v of %v at the owner of %v", ErrMalformed, m.Type, m.Map, o.dir)
	}
	if err := m.check(); err != nil {
		return err
	}
	if o.talk.phase == away || m.N != o.talk.n {
		return nil
	}
	switch o.talk.refused = m.Refused; {
	case m.Refused != "":
		o.refuse(m.Refused)
	case m.Lineage == o.lineage && m.Applied <= o.seq:
		o.follow(m)
	case o.lineage.after(m.Lineage):
		o.introduce(m)
	default: // ahead, or of a lineage that is not ours to continue
		o.newLineage(m.Lineage)
		o.talk.phase = greeting
		o.introduce(m)
	}
	return nil
}

// introduce brings a replica of a lower lineage into ours: by name only, if
// its map is the same, otherwise by sending all of it.
func (o *Owner) introduce(m Message) {
	t := &o.talk
	if t.phase == filling {
		t.full.hold(m)
		return
	}
	if t.phase == adopting && *m.Digest == *t.offer.digest {
		return // it had not had our ADOPT when it said this
	}
	o.setAcked(0)
	t.inStep = false
	if *m.Digest == o.Digest() {
		t.phase, t.said, t.offer = adopting, false, chunk{o.seq, m.Digest}
		return
	}
	o.fill(m)
}

// follow takes the word of a replica that is in our lineage, not ahead of us.
func (o *Owner) follow(m Message) {
	t := &o.talk
	if t.phase == filling && m.Applied < t.full.upto {
		t.full.hold(m)
		return
	}
	if d, known := o.digestAt(m.Applied); known && d != *m.Digest {
		o.newLineage(o.lineage)
		o.fill(m)
		return
	}
	if t.phase == streaming && m.Applied >= o.acked {
		o.advance(m.Applied)
	} else {
		o.seek(m)
	}
	t.inStep = t.phase == streaming && m.Applied == o.seq
}

// digestAt is the digest that a replica at that place must have, where known.
func (o *Owner) digestAt(applied uint64) (Digest, bool) {
	if applied == o.seq {
		return o.Digest(), true
	}
	if f := o.talk.full; f != nil && f.upto == applied {
		return f.digest, true
	}
	for _, c := range o.talk.flight {
		if c.upto == applied && c.digest != nil {
			return *c.digest, true
		}
	}
	return Digest{}, false
}

// advance notes progress. What is under way beyond it is left alone.
func (o *Owner) advance(applied uint64) {
	t := &o.talk
	o.setAcked(applied)
	for len(t.flight) > 0 && t.flight[0].upto <= applied {
		t.flight = t.flight[1:]
	}
	if applied >= t.sent {
		t.sent, t.next = applied, o.unacked
	}
}

// seek begins to send from where the replica is, which may be anywhere.
func (o *Owner) seek(m Message) {
	o.setAcked(m.Applied)
	if m.Applied < o.gcFloor {
		o.fill(m)
		return
	}
	o.stream(m.Applied)
}

func (o *Owner) stream(from uint64) {
	t := &o.talk
	t.phase, t.full, t.flight = streaming, nil, nil
	t.sent, t.next = from, o.unacked
}

// fill begins a FULL, or goes on with the one that the replica has parts of.
func (o *Owner) fill(m Message) {
	t := &o.talk
	t.phase, t.inStep, t.flight, t.next = filling, false, nil, nil
	if f := t.full; f != nil && m.ID == f.id && int(m.Part) < len(f.cuts) {
		f.held, f.sent = int(m.Part), int(m.Part)
		return
	}
	t.full = o.snapshot()
}

func (o *Owner) snapshot() *fill {
	f := &fill{id: o.rand() | 1, upto: o.seq, digest: o.Digest()}
	f.nodes = make([]*node, 0, o.live)
	count, size := 0, 0
	for n := o.order.head; n != nil; n = n.next {
		if n.Deleted {
			continue
		}
		if count > 0 && (count >= o.limits.entries || size+n.size() > o.limits.bytes) {
			f.cuts = append(f.cuts, len(f.nodes))
			count, size = 0, 0
		}
		f.nodes = append(f.nodes, n)
		count++
		size += n.size()
	}
	f.cuts = append(f.cuts, len(f.nodes)) // an empty map is one empty part
	return f
}

func (f *fill) hold(m Message) {
	if m.ID == f.id && int(m.Part) < len(f.cuts) {
		f.held = max(f.held, int(m.Part))
		f.sent = max(f.sent, f.held)
	}
}

// Messages returns what to send now, and takes it as sent.
func (o *Owner) Messages() []Message {
	t := &o.talk
	var out []Message
	switch t.phase {
	case greeting:
		if !t.said {
			m := o.message(Hello)
			m.Seq, m.Digest, m.Keys, m.Bytes = o.seq, o.digest(), uint64(o.live), uint64(o.size)
			out, t.said = append(out, m), true
		}
	case adopting:
		if !t.said {
			m := o.message(Adopt)
			m.Upto, m.Digest = t.offer.upto, t.offer.digest
			out, t.said = append(out, m), true
		}
	case filling:
		for f := t.full; f.sent < len(f.cuts) && f.sent-f.held < o.limits.window; f.sent++ {
			out = append(out, o.part(f))
		}
	case streaming:
		for t.sent < o.seq && len(t.flight) < o.limits.window {
			out = append(out, o.delta())
		}
	}
	return out
}

func (o *Owner) message(t Type) Message {
	return Message{V: Version, Map: o.dir, Type: t, N: o.talk.n, Lineage: o.lineage}
}

func (o *Owner) digest() *Digest {
	d := o.Digest()
	return &d
}

func (o *Owner) part(f *fill) Message {
	m := o.message(Full)
	m.Upto, m.ID, m.Part, m.Parts = f.upto, f.id, uint32(f.sent), uint32(len(f.cuts))
	from := 0
	if f.sent > 0 {
		from = f.cuts[f.sent-1]
	}
	m.Entries = make([]Entry, 0, f.cuts[f.sent]-from)
	for _, n := range f.nodes[from:f.cuts[f.sent]] {
		m.Entries = append(m.Entries, n.entry())
	}
	if f.sent == len(f.cuts)-1 {
		m.Digest = &f.digest
	}
	return m
}

// fits counts the entries from one on that a message has room for; the first always has.
func (o *Owner) fits(n *node) (count int) {
	for size := 0; n != nil && count < o.limits.entries; n = n.next {
		if size += n.size(); size > o.limits.bytes && count > 0 {
			break
		}
		count++
	}
	return count
}

func (o *Owner) delta() Message {
	t := &o.talk
	m := o.message(Delta)
	m.Base = t.sent
	n := o.fits(t.next)
	m.Entries = make([]Entry, 0, n)
	for range n {
		m.Entries = append(m.Entries, t.next.entry())
		m.Upto, t.next = t.next.Seq, t.next.next
	}
	if t.next == nil {
		m.Upto, m.Digest = o.seq, o.digest()
	}
	t.sent = m.Upto
	t.flight = append(t.flight, chunk{m.Upto, m.Digest})
	return m
}

// Exceeds says in words what the map would have too much of if it had the entries,
// which are of different keys, or nothing. Writes that take no room are never too much.
func (o *Owner) Exceeds(q Quota, entries ...Entry) string {
	keys, bytes := 0, 0
	for i := range entries {
		k, b := growth(o.Get, &entries[i])
		keys, bytes = keys+k, bytes+b
	}
	if keys <= 0 && bytes <= 0 {
		return ""
	}
	return q.exceeded(o.live+keys, o.size+bytes)
}

// Refused says why the replica takes nothing from this owner, if that is so.
func (o *Owner) Refused() string { return o.talk.refused }

// refuse takes note of it. Until the replica says otherwise it is only greeted, at
// each tick of the resend timer.
func (o *Owner) refuse(why string) {
	o.talk = talk{n: o.talk.n, phase: refused, refused: why}
}
