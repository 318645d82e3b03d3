package link

import "fmt"

// Quota bounds what a map may hold: its keys, and the bytes of keys and values
// together. A field that is 0 bounds nothing.
//
// The normal place for it is where the owner's host takes writes (see Exceeds):
// there the one who writes is told. A replica's quota protects its host from
// owners that don't keep to it. Such an owner's map is refused as a whole, for a
// part of it would be none of its states; it hears why, and asks from time to time.
type Quota struct{ Keys, Bytes int }

// exceeded says in words what is too much, or nothing.
func (q Quota) exceeded(keys, bytes int) string {
	switch {
	case q.Keys > 0 && keys > q.Keys:
		return fmt.Sprintf("%d keys, at most %d are taken", keys, q.Keys)
	case q.Bytes > 0 && bytes > q.Bytes:
		return fmt.Sprintf("%d bytes of keys and values, at most %d are taken", bytes, q.Bytes)
	}
	return ""
}

// Limit sets the quota. What is there already stays.
func (r *Replica) Limit(q Quota) { r.quota = q }

// Refused says why nothing is taken from the owner at present, if that is so.
func (r *Replica) Refused() string { return r.refused }

// greet takes a HELLO, which says how large the owner's map is: what can't be
// taken is refused before it is sent.
func (r *Replica) greet(m Message) {
	const most = 1 << 40 // a peer's word, which must not overflow
	r.refused = r.quota.exceeded(int(min(m.Keys, most)), int(min(m.Bytes, most)))
}

// admits says whether a DELTA leaves the map within the quota. One that is not the
// last may be too much although the owner's map is not: what makes room comes
// after it. Then the replica asks for a FULL, which has no in between.
func (r *Replica) admits(m Message) bool {
	keys, bytes := r.Len()+len(m.Entries), r.size
	for i := range m.Entries {
		bytes += m.Entries[i].weight()
	}
	if r.quota.exceeded(keys, bytes) == "" { // that is as large as it could become
		return true
	}
	keys, bytes = r.Len(), r.size
	for i := range m.Entries {
		k, b := growth(r.Get, &m.Entries[i])
		keys, bytes = keys+k, bytes+b
	}
	why := r.quota.exceeded(keys, bytes)
	if r.anew = why != "" && m.Digest == nil; !r.anew {
		r.refused = why
	}
	return why == ""
}

// growth is what an entry adds to the map that it is put into.
func growth(get func(string) (Entry, bool), e *Entry) (keys, bytes int) {
	if old, had := get(e.Key); had {
		keys, bytes = -1, -old.weight()
	}
	if !e.Deleted {
		keys, bytes = keys+1, bytes+e.weight()
	}
	return keys, bytes
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
