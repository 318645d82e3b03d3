// SPDX-License-Identifier: Apache-2.0

package link

import "fmt"

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
	o.connection = ownerConnection{n: n, startSeq: o.seq, phase: phaseGreeting}
}

// Disconnect ends the session.
func (o *Owner) Disconnect() { o.connection = ownerConnection{} }

// InStep reports whether the replica's digest was equal in this connection, with nothing written since.
func (o *Owner) InStep() bool { return o.connection.inStep }

// CaughtUp reports whether the replica has everything that was written before this connection began. Unlike InStep it becomes
// true while writes continue.
func (o *Owner) CaughtUp() bool {
	return o.connection.phase == phaseSendingDeltas && o.acked >= o.connection.startSeq
}

// Waiting reports whether something that was sent has no answer yet. While it is true the host runs the resend timer, and
// restarts it with each message sent or received.
func (o *Owner) Waiting() bool {
	switch t := &o.connection; t.phase {
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
		t := &o.connection
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
	if o.connection.phase == phaseDisconnected || m.N != o.connection.n {
		return nil
	}
	switch o.connection.refused = m.Refused; {
	case m.Refused != "":
		o.connection.refuse(m.Refused)
	case m.Lineage == o.lineage && m.Applied <= o.seq:
		o.handleSameLineage(m)
	case o.lineage.after(m.Lineage):
		o.startUnderLineage(m)
	default: // ahead, or of a lineage that is not ours to continue
		if m.Lineage == o.lineage {
			o.connection.lost = fmt.Sprintf("the last %d changes that were acknowledged are gone", m.Applied-o.seq)
		}
		o.newLineage(m.Lineage)
		o.connection.phase = phaseGreeting
		o.startUnderLineage(m)
	}
	return nil
}

// startUnderLineage moves a replica of an earlier lineage to this one: with ADOPT if its map is equal, otherwise with FULL.
func (o *Owner) startUnderLineage(m Message) {
	t := &o.connection
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
	t := &o.connection
	if t.phase == phaseSendingFull && m.Applied < t.full.upto {
		t.full.noteHeld(m)
		return
	}
	if d, known := o.digestAt(m.Applied); known && d != *m.Digest {
		o.connection.lost = "changes that were acknowledged are gone, and others have their numbers"
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
	if f := o.connection.full; f != nil && f.upto == applied {
		return f.digest, true
	}
	for _, c := range o.connection.inflight {
		if c.upto == applied && c.digest != nil {
			return *c.digest, true
		}
	}
	return Digest{}, false
}

// advance records what the replica has applied. Messages beyond that stay in flight.
func (o *Owner) advance(applied uint64) {
	t := &o.connection
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
	t := &o.connection
	t.phase, t.full, t.inflight = phaseSendingDeltas, nil, nil
	t.sentUpto, t.next = from, o.unacked
}

// startFull begins a FULL, or continues the one of which the replica has parts.
func (o *Owner) startFull(m Message) {
	t := &o.connection
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
	t := &o.connection
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
	return Message{V: Version, Map: o.dir, Type: t, N: o.connection.n, Lineage: o.lineage}
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

func (o *Owner) delta() Message {
	t := &o.connection
	m := o.message(TypeDelta)
	m.Base = t.sentUpto
	n := o.limits.fits(t.next)
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

// sendLimits of what is sent at once. Tests make them small.
type sendLimits struct {
	bytes   int // of a message's entries
	entries int // in a message
	window  int // messages sent and not answered
}

func defaultSendLimits() sendLimits {
	return sendLimits{bytes: MaxMessage - messageOverhead, entries: 1 << 14, window: 4}
}

// fits is how many entries from n on fit into a message; at least one.
func (l sendLimits) fits(n *ownerEntry) (count int) {
	for size := 0; n != nil && count < l.entries; n = n.next {
		if size += n.size(); size > l.bytes && count > 0 {
			break
		}
		count++
	}
	return count
}

// refuse records that the replica applies nothing. Until a SEEN says otherwise the owner only sends HELLO, each time that
// the resend timer expires.
func (t *ownerConnection) refuse(why string) {
	*t = ownerConnection{n: t.n, phase: phaseRefused, refused: why, lost: t.lost}
}
