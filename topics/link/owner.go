package link

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
)

// Owner is the writing side of a map.
type Owner struct {
	dir      MapDirection
	rand     func() uint64
	lineage  Lineage
	seq      uint64
	acked    uint64
	gcFloor  uint64
	verFloor uint64

	keys    map[string]*ownerEntry
	sorted  keyTable // the same keys, in order
	order   ownerEntryList
	unacked *ownerEntry // first in order with seq > acked
	dirty   int         // how many from there on
	live    int
	size    int // bytes of live entries
	sum     hashSum
	changes changeLog

	limits  sendLimits
	session ownerConnection
}

// sendLimits of what is sent at once. Tests make them small.
type sendLimits struct {
	bytes   int // of a message's entries
	entries int // in a message
	window  int // messages sent and not answered
}

func defaultSendLimits() sendLimits {
	return sendLimits{bytes: MaxMessage - messageOverhead, entries: 1 << 14, window: 4}
}

// NewOwner begins an empty map under a lineage of its own. rand must be
// unpredictable enough that two owners never draw the same number.
func NewOwner(dir MapDirection, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.changes = changeLog{dirty: true, reset: true}
	return o
}

// NewProjection begins an empty map without a journal: its host derives the entries from another store, again after each
// restart.
func NewProjection(dir MapDirection, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.changes.disabled = true
	return o
}

func newOwner(dir MapDirection, rand func() uint64) *Owner {
	return &Owner{dir: dir, rand: rand, keys: make(map[string]*ownerEntry), limits: defaultSendLimits()}
}

// RestoreOwner continues from what was committed. It fails if the content of the store can't have come from journals.
func RestoreOwner(dir MapDirection, s MapState, entries iter.Seq[Entry], rand func() uint64) (*Owner, error) {
	if s.Lineage.N == 0 {
		return nil, fmt.Errorf("restore owner of %v: no lineage", dir)
	}
	o := newOwner(dir, rand)
	o.lineage, o.seq, o.gcFloor, o.verFloor = s.Lineage, s.Seq, s.GCFloor, s.VerFloor
	var nodes []*ownerEntry
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore owner of %v: %w", dir, err)
		}
		nodes = append(nodes, &ownerEntry{Entry: e})
	}
	slices.SortFunc(nodes, func(a, b *ownerEntry) int {
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

// Put writes a key. It returns the entry as stored, and whether anything was written: the value and Meta that the key has
// already are not written again.
//
// With Ver 0 the owner counts the key's versions, which never fall, even after the key was deleted and its tombstone
// dropped. Otherwise Ver is taken as given, and the caller makes sure that it rises.
func (o *Owner) Put(e Entry) (Entry, bool, error) { return o.PutShared(e, "") }

// PutShared is Put for a value whose end, tail, is common to many entries. The owner keeps the string that it is given, so
// that it is in memory once; readers get whole values.
func (o *Owner) PutShared(e Entry, tail string) (Entry, bool, error) {
	e.Deleted = false
	if head := len(e.Value) - len(tail); head < 0 || string(e.Value[head:]) != tail {
		tail = ""
	}
	if err := e.check(); err != nil {
		return Entry{}, false, err
	}
	e.Origin = cutOrigin(e.Origin)
	old := o.keys[e.Key]
	if old != nil && !old.Deleted && old.Meta == e.Meta && (e.Ver == 0 || e.Ver == old.Ver) && old.holds(e.Value) {
		return old.entry(), false, nil
	}
	if e.Ver == 0 {
		e.Ver = o.nextVer(old)
	}
	return o.write(old, e, tail), true, nil
}

// Delete removes a key and returns its tombstone; false if the key does not exist.
func (o *Owner) Delete(key string, ts int64, origin string) (Entry, bool) {
	old := o.keys[key]
	if old == nil || old.Deleted {
		return Entry{}, false
	}
	e := Entry{Key: key, Ver: old.Ver + 1, TS: ts, Origin: cutOrigin(origin), Deleted: true}
	return o.write(old, e, ""), true
}

func (o *Owner) nextVer(old *ownerEntry) uint64 {
	if old != nil {
		return old.Ver + 1
	}
	return o.verFloor + 1
}

func (o *Owner) write(old *ownerEntry, e Entry, tail string) Entry {
	if old != nil {
		e.Key = old.Key // one copy of the text for map and entry
		o.unlink(old)
	}
	o.seq++
	e.Seq = o.seq
	n := old
	if n == nil || o.session.full != nil { // a FULL that is being sent holds the old node
		n = new(ownerEntry)
		o.keys[e.Key] = n
	}
	if old == nil {
		o.sorted.put(e.Key, nil)
	}
	n.set(e, tail)
	o.append(n)
	o.changes.dirty = true
	o.changes.put(e)
	o.session.inStep = false
	return e
}

// append puts a node, whose seq is the highest, at the end of the order.
func (o *Owner) append(n *ownerEntry) {
	o.order.push(n)
	if o.unacked == nil {
		o.unacked = n
	}
	if o.session.next == nil {
		o.session.next = n
	}
	o.dirty++
	if !n.Deleted {
		o.live++
		o.size += n.weight()
		o.sum.add(n.hash())
	}
}

// unlink removes a node from the order and the counters. The map of keys still has it: the caller replaces or deletes it.
func (o *Owner) unlink(n *ownerEntry) {
	if o.unacked == n {
		o.unacked = n.next
	}
	if o.session.next == n {
		o.session.next = n.next
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

// forget drops a tombstone. It does not make the journal dirty: a tombstone that is restored after a crash is dropped again.
func (o *Owner) forget(n *ownerEntry) {
	o.unlink(n)
	delete(o.keys, n.Key)
	o.sorted.del(n.Key)
	o.gcFloor = max(o.gcFloor, n.Seq)
	o.verFloor = max(o.verFloor, n.Ver)
	o.changes.drop(n.Key)
}

// setAcked sets up to which seq the replica has the map. Raising it drops the tombstones that it passes (rule 5). It is
// lowered when the replica was rolled back.
func (o *Owner) setAcked(a uint64) {
	for n := o.unacked; n != nil && n.Seq <= a; n = o.unacked {
		o.unacked = n.next
		o.dirty--
		if n.Deleted {
			o.acked = n.Seq // unlink counts it as acknowledged
			o.forget(n)
		}
	}
	for n := o.before(o.unacked); n != nil && n.Seq > a; n = n.prev {
		o.unacked = n
		o.dirty++
	}
	o.acked = a
}

func (o *Owner) before(n *ownerEntry) *ownerEntry {
	if n == nil {
		return o.order.tail
	}
	return n.prev
}

// newLineage begins a lineage that is later than both the owner's and seen. Sequence numbers continue: the replica enters
// the lineage by ADOPT or FULL only, so at this seq or later, and never asks for what is below. So entries are not
// renumbered, and tombstones are dropped.
func (o *Owner) newLineage(seen Lineage) {
	if !seen.after(o.lineage) {
		seen = o.lineage
	}
	o.lineage = Lineage{N: seen.next(), Nonce: o.rand()}
	o.setAcked(o.seq)
	o.setAcked(0)
	o.session.full = nil
	o.session.inStep = false
	o.changes.dirty = true
}

// TakeJournal returns what is to be committed before Messages are sent.
func (o *Owner) TakeJournal() JournalChanges {
	return o.changes.take(o.state())
}

func (o *Owner) state() MapState {
	return MapState{Lineage: o.lineage, Seq: o.seq, Acked: o.acked, GCFloor: o.gcFloor, VerFloor: o.verFloor}
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
func (o *Owner) Keys(prefix string) []string { return collectKeys(o.Range, prefix) }

func collectKeys(all func(string, func(Entry) bool), prefix string) (keys []string) {
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

// ownerEntry is an entry in the owner's order. While a FULL is being sent, which refers to nodes, a write makes a new node
// instead of changing one.
type ownerEntry struct {
	Entry             // its Value is without tail
	tail       string // the end of the value, shared with other nodes
	prev, next *ownerEntry
}

// set stores an entry whose value ends in tail.
func (n *ownerEntry) set(e Entry, tail string) {
	n.Entry, n.tail = e, tail
	if tail != "" {
		n.Value = bytes.Clone(e.Value[:len(e.Value)-len(tail)])
	}
}

// entry is the entry with its whole value.
func (n *ownerEntry) entry() Entry {
	e := n.Entry
	if n.tail != "" {
		e.Value = append(append(make([]byte, 0, len(e.Value)+len(n.tail)), e.Value...), n.tail...)
	}
	return e
}

func (n *ownerEntry) hash() hashSum {
	e := n.entry()
	return e.hash()
}

func (n *ownerEntry) weight() int { return n.Entry.weight() + len(n.tail) }
func (n *ownerEntry) size() int   { return n.Entry.size() + len(n.tail) }

// holds reports whether value is the entry's value.
func (n *ownerEntry) holds(value []byte) bool {
	head := len(value) - len(n.tail)
	return head >= 0 && string(value[head:]) == n.tail && bytes.Equal(value[:head], n.Value)
}

// ownerEntryList has an owner's nodes by rising seq. It is the outbox: the nodes from the first unacknowledged one to the tail are
// to be sent.
type ownerEntryList struct {
	head, tail *ownerEntry
	len        int
}

func (l *ownerEntryList) push(n *ownerEntry) {
	n.prev, n.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

func (l *ownerEntryList) remove(n *ownerEntry) {
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
	n.prev, n.next = nil, nil // a FULL may keep this node; it must not keep its neighbours from the garbage collector
	l.len--
}

// connectionPhase is the state of an owner's session.
type connectionPhase uint8

const (
	phaseDisconnected  connectionPhase = iota // no connection
	phaseGreeting                             // HELLO, until a SEEN says where the replica is
	phaseAdopting                             // ADOPT, until the replica says that it took the lineage
	phaseSendingFull                          // FULL, part by part
	phaseSendingDeltas                        // DELTAs
	phaseRefused                              // nothing: the map is more than the replica takes
)

// ownerConnection is an owner's state of one connection. It is not stored.
type ownerConnection struct {
	n         uint64
	startSeq  uint64 // the owner's seq when the connection began
	phase     connectionPhase
	announced bool // the phase's HELLO or ADOPT was sent
	inStep    bool
	refused   string // why; phase refused, and while it is asked again
	lost      string // what the replica has of this map and the owner lacks, found in this connection

	offer sentChunk // adopting: the map that ADOPT speaks of

	sentUpto uint64      // streaming: DELTAs were sent up to here
	next     *ownerEntry // first in order with seq > sent
	inflight []sentChunk // DELTAs sent and not answered, oldest first

	full *fullTransfer // filling; also greeting, when one was begun and may be resumed
}

// sentChunk is a message that was sent and takes the replica to upto. It has the digest if it was the last of its DELTA, so that
// the replica then has the owner's whole map.
type sentChunk struct {
	upto   uint64
	digest *Digest
}

// fullTransfer is a FULL that is being sent: the map as it was when the transfer began.
type fullTransfer struct {
	id       uint64
	upto     uint64
	digest   Digest
	nodes    []*ownerEntry
	partEnds []int // where each part ends
	sent     int   // parts
	held     int   // parts that the replica has
}

// Connect begins a session. n must differ from that of every earlier connection, so that a late answer of one is recognised
// and ignored.
func (o *Owner) Connect(n uint64) {
	o.session = ownerConnection{n: n, startSeq: o.seq, phase: phaseGreeting}
}

// Disconnect ends the session.
func (o *Owner) Disconnect() { o.session = ownerConnection{} }

// InStep reports whether the replica's digest was equal in this connection, with nothing written since.
func (o *Owner) InStep() bool { return o.session.inStep }

// CaughtUp reports whether the replica has everything that was written before this connection began. Unlike InStep it becomes
// true while writes continue.
func (o *Owner) CaughtUp() bool {
	return o.session.phase == phaseSendingDeltas && o.acked >= o.session.startSeq
}

// Waiting reports whether something that was sent has no answer yet. While it is true the host runs the resend timer, and
// restarts it with each message sent or received.
func (o *Owner) Waiting() bool {
	switch t := &o.session; t.phase {
	case phaseGreeting, phaseAdopting:
		return t.announced
	case phaseSendingFull:
		return t.full.sent > 0
	case phaseSendingDeltas:
		return len(t.inflight) > 0
	case phaseRefused:
		return true
	}
	return false
}

// Resend is called when the resend timer expires. It sends HELLO instead of repeating messages that may only be slow; the
// replica's answer decides what is sent again.
func (o *Owner) Resend() {
	if o.Waiting() {
		t := &o.session
		t.phase, t.announced, t.inflight, t.next = phaseGreeting, false, nil, nil
	}
}

// Step handles a SEEN. One of another connection is ignored. An error means that the message is not for this owner; nothing
// is changed then.
func (o *Owner) Step(m Message) error {
	if m.Type != TypeSeen || m.Map != o.dir {
		return fmt.Errorf("%w: %v of %v at the owner of %v", ErrMalformed, m.Type, m.Map, o.dir)
	}
	if err := m.check(); err != nil {
		return err
	}
	if o.session.phase == phaseDisconnected || m.N != o.session.n {
		return nil
	}
	switch o.session.refused = m.Refused; {
	case m.Refused != "":
		o.refuse(m.Refused)
	case m.Lineage == o.lineage && m.Applied <= o.seq:
		o.handleSameLineage(m)
	case o.lineage.after(m.Lineage):
		o.startUnderLineage(m)
	default: // ahead, or of a lineage that is not ours to continue
		if m.Lineage == o.lineage {
			o.session.lost = fmt.Sprintf("the last %d changes that were acknowledged are gone", m.Applied-o.seq)
		}
		o.newLineage(m.Lineage)
		o.session.phase = phaseGreeting
		o.startUnderLineage(m)
	}
	return nil
}

// startUnderLineage moves a replica of an earlier lineage to this one: with ADOPT if its map is equal, otherwise with FULL.
func (o *Owner) startUnderLineage(m Message) {
	t := &o.session
	if t.phase == phaseSendingFull {
		t.full.noteHeld(m)
		return
	}
	if t.phase == phaseAdopting && *m.Digest == *t.offer.digest {
		return // the SEEN was sent before the ADOPT arrived
	}
	o.setAcked(0)
	t.inStep = false
	if *m.Digest == o.Digest() {
		t.phase, t.announced, t.offer = phaseAdopting, false, sentChunk{o.seq, m.Digest}
		return
	}
	o.startFull(m)
}

// handleSameLineage handles the SEEN of a replica that has this lineage and is not ahead of the owner.
func (o *Owner) handleSameLineage(m Message) {
	t := &o.session
	if t.phase == phaseSendingFull && m.Applied < t.full.upto {
		t.full.noteHeld(m)
		return
	}
	if d, known := o.digestAt(m.Applied); known && d != *m.Digest {
		o.session.lost = "changes that were acknowledged are gone, and others have their numbers"
		o.newLineage(o.lineage)
		o.startFull(m)
		return
	}
	if t.phase == phaseSendingDeltas && m.Applied >= o.acked {
		o.advance(m.Applied)
	} else {
		o.resumeFrom(m)
	}
	t.inStep = t.phase == phaseSendingDeltas && m.Applied == o.seq
}

// digestAt is the digest that a replica at applied must have, if it is known.
func (o *Owner) digestAt(applied uint64) (Digest, bool) {
	if applied == o.seq {
		return o.Digest(), true
	}
	if f := o.session.full; f != nil && f.upto == applied {
		return f.digest, true
	}
	for _, c := range o.session.inflight {
		if c.upto == applied && c.digest != nil {
			return *c.digest, true
		}
	}
	return Digest{}, false
}

// advance records what the replica has applied. Messages beyond that stay in flight.
func (o *Owner) advance(applied uint64) {
	t := &o.session
	o.setAcked(applied)
	for len(t.inflight) > 0 && t.inflight[0].upto <= applied {
		t.inflight = t.inflight[1:]
	}
	if applied >= t.sentUpto {
		t.sentUpto, t.next = applied, o.unacked
	}
}

// resumeFrom begins to send from the replica's position: DELTAs, or FULL if it is below gcFloor.
func (o *Owner) resumeFrom(m Message) {
	o.setAcked(m.Applied)
	if m.Applied < o.gcFloor {
		o.startFull(m)
		return
	}
	o.startDeltas(m.Applied)
}

func (o *Owner) startDeltas(from uint64) {
	t := &o.session
	t.phase, t.full, t.inflight = phaseSendingDeltas, nil, nil
	t.sentUpto, t.next = from, o.unacked
}

// startFull begins a FULL, or continues the one of which the replica has parts.
func (o *Owner) startFull(m Message) {
	t := &o.session
	t.phase, t.inStep, t.inflight, t.next = phaseSendingFull, false, nil, nil
	if f := t.full; f != nil && m.ID == f.id && int(m.Part) < len(f.partEnds) {
		f.held, f.sent = int(m.Part), int(m.Part)
		return
	}
	t.full = o.snapshot()
}

func (o *Owner) snapshot() *fullTransfer {
	f := &fullTransfer{id: o.rand() | 1, upto: o.seq, digest: o.Digest()}
	f.nodes = make([]*ownerEntry, 0, o.live)
	count, size := 0, 0
	for n := o.order.head; n != nil; n = n.next {
		if n.Deleted {
			continue
		}
		if count > 0 && (count >= o.limits.entries || size+n.size() > o.limits.bytes) {
			f.partEnds = append(f.partEnds, len(f.nodes))
			count, size = 0, 0
		}
		f.nodes = append(f.nodes, n)
		count++
		size += n.size()
	}
	f.partEnds = append(f.partEnds, len(f.nodes)) // an empty map is one empty part
	return f
}

func (f *fullTransfer) noteHeld(m Message) {
	if m.ID == f.id && int(m.Part) < len(f.partEnds) {
		f.held = max(f.held, int(m.Part))
		f.sent = max(f.sent, f.held)
	}
}

// Messages returns what to send now, and records it as sent.
func (o *Owner) Messages() []Message {
	t := &o.session
	var out []Message
	switch t.phase {
	case phaseGreeting:
		if !t.announced {
			m := o.message(TypeHello)
			m.Seq, m.Digest, m.Keys, m.Bytes = o.seq, o.digest(), uint64(o.live), uint64(o.size)
			out, t.announced = append(out, m), true
		}
	case phaseAdopting:
		if !t.announced {
			m := o.message(TypeAdopt)
			m.Upto, m.Digest = t.offer.upto, t.offer.digest
			out, t.announced = append(out, m), true
		}
	case phaseSendingFull:
		for f := t.full; f.sent < len(f.partEnds) && f.sent-f.held < o.limits.window; f.sent++ {
			out = append(out, o.part(f))
		}
	case phaseSendingDeltas:
		for t.sentUpto < o.seq && len(t.inflight) < o.limits.window {
			out = append(out, o.delta())
		}
	}
	return out
}

func (o *Owner) message(t Type) Message {
	return Message{V: Version, Map: o.dir, Type: t, N: o.session.n, Lineage: o.lineage}
}

func (o *Owner) digest() *Digest {
	d := o.Digest()
	return &d
}

func (o *Owner) part(f *fullTransfer) Message {
	m := o.message(TypeFull)
	m.Upto, m.ID, m.Part, m.Parts = f.upto, f.id, uint32(f.sent), uint32(len(f.partEnds))
	from := 0
	if f.sent > 0 {
		from = f.partEnds[f.sent-1]
	}
	m.Entries = make([]Entry, 0, f.partEnds[f.sent]-from)
	for _, n := range f.nodes[from:f.partEnds[f.sent]] {
		m.Entries = append(m.Entries, n.entry())
	}
	if f.sent == len(f.partEnds)-1 {
		m.Digest = &f.digest
	}
	return m
}

// fits is how many entries from n on fit into a message; at least one.
func (o *Owner) fits(n *ownerEntry) (count int) {
	for size := 0; n != nil && count < o.limits.entries; n = n.next {
		if size += n.size(); size > o.limits.bytes && count > 0 {
			break
		}
		count++
	}
	return count
}

func (o *Owner) delta() Message {
	t := &o.session
	m := o.message(TypeDelta)
	m.Base = t.sentUpto
	n := o.fits(t.next)
	m.Entries = make([]Entry, 0, n)
	for range n {
		m.Entries = append(m.Entries, t.next.entry())
		m.Upto, t.next = t.next.Seq, t.next.next
	}
	if t.next == nil {
		m.Upto, m.Digest = o.seq, o.digest()
	}
	t.sentUpto = m.Upto
	t.inflight = append(t.inflight, sentChunk{m.Upto, m.Digest})
	return m
}

// Exceeds says which limit of q the map would exceed with the entries, whose keys differ; empty: none. Writes that don't
// make the map larger never exceed it.
func (o *Owner) Exceeds(q Quota, entries ...Entry) string {
	keys, bytes := len(entries), 0
	for i := range entries {
		bytes += entries[i].weight()
	}
	if q.exceeded(o.live+keys, o.size+bytes) == "" { // an upper bound of the size
		return ""
	}
	keys, bytes = 0, 0
	for i := range entries {
		k, b := entryGrowth(o.Get, &entries[i])
		keys, bytes = keys+k, bytes+b
	}
	if keys <= 0 && bytes <= 0 {
		return ""
	}
	return q.exceeded(o.live+keys, o.size+bytes)
}

// Refused says why the replica applies nothing from this owner; empty: it applies everything.
func (o *Owner) Refused() string { return o.session.refused }

// Lost says what the replica has shown, in this connection, to have been lost of this map since it was acknowledged: the map was replaced
// by an older copy. Empty: nothing.
func (o *Owner) Lost() string { return o.session.lost }

// refuse records that the replica applies nothing. Until a SEEN says otherwise the owner only sends HELLO, each time that
// the resend timer expires.
func (o *Owner) refuse(why string) {
	o.session = ownerConnection{n: o.session.n, phase: phaseRefused, refused: why, lost: o.session.lost}
}
