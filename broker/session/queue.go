package session

// ring is a first-in first-out buffer whose entries keep their sequence number
// for as long as they are in it.
type ring[T any] struct {
	buf   []T // its length is a power of two
	head  int
	n     int
	first uint64 // sequence number of the entry at head
}

func (r *ring[T]) len() int { return r.n }

// end is the sequence number that the next entry gets.
func (r *ring[T]) end() uint64 { return r.first + uint64(r.n) }

// at returns the entry with the sequence number, which must be in the ring.
func (r *ring[T]) at(seq uint64) *T {
	return &r.buf[(r.head+int(seq-r.first))&(len(r.buf)-1)]
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		r.grow()
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}

func (r *ring[T]) grow() {
	bigger := make([]T, max(16, 2*len(r.buf)))
	for i := range r.n {
		bigger[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
	}
	r.buf, r.head = bigger, 0
}

// pop takes the oldest entry off. A ring that was large gives its memory back
// once it is empty.
func (r *ring[T]) pop() T {
	var none T
	v := r.buf[r.head]
	r.buf[r.head] = none
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	r.first++
	if r.n == 0 && len(r.buf) > 1024 {
		r.buf, r.head = nil, 0
	}
	return v
}

// dropLast takes the newest entry off.
func (r *ring[T]) dropLast() {
	var none T
	*r.at(r.end() - 1) = none
	r.n--
}

// item is a message waiting in a queue.
type item struct {
	msg    *Message // nil: evicted
	ids    []uint32
	qos    byte
	retain bool
	stake  *stake // nil: of a session that doesn't outlive the process, or QoS 0
}

// queue keeps a session's messages in order and within bounds. QoS 0 gives way first.
type queue struct {
	items ring[item]
	zero  ring[uint64] // sequence numbers of QoS 0 items, oldest first; some may have left
	live  int          // items not evicted
	bytes int
}

// push appends without looking at bounds.
func (q *queue) push(it item) {
	if it.qos == 0 {
		q.zero.push(q.items.end())
	}
	q.items.push(it)
	q.live++
	q.bytes += it.msg.weight()
}

// front returns the oldest item that was not evicted.
func (q *queue) front() (item, bool) {
	for q.items.len() > 0 {
		it := *q.items.at(q.items.first)
		if it.msg != nil {
			return it, true
		}
		q.items.pop()
	}
	return item{}, false
}

// pop takes off what front returned.
func (q *queue) pop() {
	it := q.items.pop()
	q.live--
	q.bytes -= it.msg.weight()
	for q.zero.len() > 0 && *q.zero.at(q.zero.first) < q.items.first {
		q.zero.pop()
	}
}

// evictZero makes room by dropping the oldest QoS 0 item; nil: there is none.
func (q *queue) evictZero() *Message {
	for q.zero.len() > 0 {
		seq := q.zero.pop()
		if seq < q.items.first {
			continue
		}
		m := q.items.at(seq).msg
		q.evict(seq)
		return m
	}
	return nil
}

// compact closes the gaps that evicted items have left.
func (q *queue) compact() {
	if q.items.len() == q.live {
		return
	}
	old := q.items
	q.items, q.zero = ring[item]{first: old.first}, ring[uint64]{}
	for seq := old.first; seq < old.end(); seq++ {
		it := *old.at(seq)
		if it.msg == nil {
			continue
		}
		if it.stake != nil {
			it.stake.pos = q.items.end()
		}
		if it.qos == 0 {
			q.zero.push(q.items.end())
		}
		q.items.push(it)
	}
}

// gaps is how many evicted items a queue may have besides as many as are left.
const gaps = 8

// evict drops an item from wherever it is. Nobody may come for long to take off what is
// before it, so it leaves no gap at the end, and not many before.
func (q *queue) evict(seq uint64) {
	it := q.items.at(seq)
	q.live--
	q.bytes -= it.msg.weight()
	*it = item{}
	for q.items.len() > 0 && q.items.at(q.items.end()-1).msg == nil {
		q.items.dropLast()
	}
	if q.items.len() > 2*q.live+gaps {
		q.compact()
	}
}
