package session

import (
	"sync"

	"github.com/edgebus/edgebus/broker/quota"
)

// ring is a first-in first-out buffer whose entries keep their sequence number
// for as long as they are in it. It grows block by block: were it copied to grow, all the
// sessions that get the same messages would do so at the same moment.
type ring[T any] struct {
	blocks     []*block[T]
	head, tail *block[T]  // the first and the last of them
	pool       *sync.Pool // of empty blocks; nil: none
	off        int        // of the oldest entry, in the first block
	n          int
	first      uint64 // sequence number of the oldest entry
}

type block[T any] [blockLen]T

const blockLen = 16

func (r *ring[T]) len() int { return r.n }

// end is the sequence number that the next entry gets.
func (r *ring[T]) end() uint64 { return r.first + uint64(r.n) }

// at returns the entry with the sequence number, which must be in the ring.
func (r *ring[T]) at(seq uint64) *T {
	i := r.off + int(seq-r.first)
	return &r.blocks[i/blockLen][i%blockLen]
}

// oldest returns the first entry, which there must be.
func (r *ring[T]) oldest() *T { return &r.head[r.off] }

func (r *ring[T]) push(v T) {
	i := r.off + r.n
	if i == len(r.blocks)*blockLen {
		r.blocks = append(r.blocks, r.more())
		r.ends()
	}
	r.tail[i%blockLen] = v
	r.n++
}

func (r *ring[T]) more() *block[T] {
	if r.pool != nil {
		if b, ok := r.pool.Get().(*block[T]); ok {
			return b
		}
	}
	return new(block[T])
}

func (r *ring[T]) free(b *block[T]) {
	if r.pool != nil {
		r.pool.Put(b)
	}
}

// ends finds the first and the last block.
func (r *ring[T]) ends() {
	if r.head, r.tail = nil, nil; len(r.blocks) > 0 {
		r.head, r.tail = r.blocks[0], r.blocks[len(r.blocks)-1]
	}
}

// pop takes the oldest entry off.
func (r *ring[T]) pop() T {
	var none T
	at := r.oldest()
	v := *at
	*at = none
	r.off++
	r.n--
	r.first++
	switch {
	case r.off == blockLen:
		r.free(r.head)
		r.blocks[0] = nil
		r.blocks, r.off = r.blocks[1:], 0
		r.ends()
	case r.n == 0:
		r.off = 0
	}
	return v
}

// dropLast takes the newest entry off.
func (r *ring[T]) dropLast() {
	var none T
	*r.at(r.end() - 1) = none
	r.n--
	if last := len(r.blocks) - 1; r.off+r.n == last*blockLen {
		r.free(r.tail)
		r.blocks[last] = nil
		r.blocks = r.blocks[:last]
		r.ends()
	}
}

// item is a message waiting in a queue.
type item struct {
	msg    *Message // nil: evicted
	ids    []uint32
	qos    byte
	retain bool
	weight uint32  // what it counts for in the queue
	share  *string // the shared subscription that it came by; nil: none
	stake  *stake  // nil: of a session that doesn't outlive the process, or QoS 0
}

// queue keeps a session's messages in order and within bounds. QoS 0 gives way first.
type queue struct {
	items ring[item]
	zero  ring[uint64] // sequence numbers of QoS 0 items, oldest first; some may have left
	live  int          // items not evicted
	bytes int
	zeros int            // of the bytes, those of QoS 0
	user  *quota.Account // what it counts for
}

var itemBlocks sync.Pool // sessions fill and empty their queues all the time

func newQueue(user *quota.Account) queue {
	return queue{items: ring[item]{pool: &itemBlocks}, user: user}
}

// push appends without looking at bounds.
func (q *queue) push(it item) {
	if it.qos == 0 {
		q.zero.push(q.items.end())
	}
	q.items.push(it)
	q.live++
	q.hold(it, int(it.weight))
}

func (q *queue) hold(it item, bytes int) {
	q.bytes += bytes
	if it.qos == 0 {
		q.zeros += bytes
	}
	q.user.Add(int64(bytes))
}

// stored is the bytes of what is on disk, too.
func (q *queue) stored() int { return q.bytes - q.zeros }

// front returns the oldest item that was not evicted.
func (q *queue) front() (item, bool) {
	for q.items.len() > 0 {
		it := *q.items.oldest()
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
	q.hold(it, -int(it.weight))
	for q.zero.len() > 0 && *q.zero.oldest() < q.items.first {
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
	q.items, q.zero = ring[item]{first: old.first, pool: old.pool}, ring[uint64]{}
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
	q.hold(*it, -int(it.weight))
	*it = item{}
	for q.items.len() > 0 && q.items.at(q.items.end()-1).msg == nil {
		q.items.dropLast()
	}
	if q.items.len() > 2*q.live+gaps {
		q.compact()
	}
}
