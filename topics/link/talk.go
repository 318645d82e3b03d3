package link

import "fmt"

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
