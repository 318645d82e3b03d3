package journal

import (
	"encoding/binary"
	"errors"

	"github.com/edgebus/edgebus/broker/wal"
)

// A frame of the log is operations, one after the other: a put is 1, record, length,
// value; a delete is 2, record; base, the oldest segment needed, is 3, segment number.
const (
	opPut    = 1
	opDelete = 2
	opBase   = 3
)

// operation is one of a frame's.
type operation struct {
	kind  byte
	id    uint64 // record, or segment number
	value []byte
	size  int
}

// nextOp takes the first operation apart.
func nextOp(b []byte) (op operation, err error) {
	op.kind = b[0]
	at := 1
	number := func() uint64 {
		n, used := binary.Uvarint(b[at:])
		if used <= 0 {
			err = errOperation
			return 0
		}
		at += used
		return n
	}
	op.id = number()
	if op.kind == opPut && err == nil {
		n := number()
		if err == nil && n > uint64(len(b)-at) {
			err = errOperation
		}
		if err == nil {
			op.value = b[at : at+int(n) : at+int(n)]
			at += int(n)
		}
	}
	if op.kind < opPut || op.kind > opBase {
		err = errOperation
	}
	op.size = at
	return op, err
}

var errOperation = errors.New("an operation that can't be read")

// group is what one write makes durable.
type group struct {
	buf    []byte // a frame, with its head still to be filled in
	ops    []mark
	calls  []call
	urgent bool
}

// call is one commit's, with the end of its operations.
type call struct {
	done func(error) // nil: nobody waits
	ops  int
}

// mark says where an operation stands in a group.
type mark struct {
	id   uint64
	at   uint32
	size uint32
	put  bool
}

func newGroup() *group { return &group{buf: make([]byte, wal.HeadSize)} }

const keepGroup = 4 << 20

func (g *group) reset() {
	if cap(g.buf) > keepGroup {
		*g = *newGroup()
		return
	}
	clear(g.calls)
	*g = group{buf: g.buf[:wal.HeadSize], ops: g.ops[:0], calls: g.calls[:0]}
}

func (g *group) empty() bool { return len(g.buf) == wal.HeadSize }

func (g *group) add(c Change) {
	at := len(g.buf)
	if c.Value == nil {
		g.buf = binary.AppendUvarint(append(g.buf, opDelete), c.ID)
	} else {
		g.buf = binary.AppendUvarint(append(g.buf, opPut), c.ID)
		g.buf = binary.AppendUvarint(g.buf, uint64(len(c.Value)))
		g.buf = append(g.buf, c.Value...)
	}
	g.ops = append(g.ops, mark{c.ID, uint32(at), uint32(len(g.buf) - at), c.Value != nil})
}

// again puts what nobody waits for, out of a group that failed, before what came
// after it. Of each record the last state counts, and none of one that is not stored and is
// to go: else all that comes and goes while the disk is full would wait for it to end.
func (g *group) again(failed *group, stored *index) {
	last := make(map[uint64]mark)
	begin := 0
	for _, c := range failed.calls {
		if c.done == nil {
			for _, m := range failed.ops[begin:c.ops] {
				if _, ok := stored.get(m.id); m.put || ok {
					last[m.id] = m
				} else {
					delete(last, m.id)
				}
			}
		}
		begin = c.ops
	}
	if len(last) == 0 {
		return
	}
	front := newGroup()
	for _, m := range last {
		text := failed.buf[m.at : m.at+m.size]
		front.ops = append(front.ops, mark{m.id, uint32(len(front.buf)), m.size, m.put})
		front.buf = append(front.buf, text...)
	}
	shift := uint32(len(front.buf) - wal.HeadSize)
	added := len(front.ops)
	front.calls = append(front.calls, call{nil, added})
	for _, m := range g.ops {
		m.at += shift
		front.ops = append(front.ops, m)
	}
	for _, c := range g.calls {
		c.ops += added
		front.calls = append(front.calls, c)
	}
	front.buf = append(front.buf, g.buf[wal.HeadSize:]...)
	front.urgent = g.urgent
	*g = *front
}

// addBase says that segments before number are not needed any more.
func (g *group) addBase(number uint64) {
	g.buf = binary.AppendUvarint(append(g.buf, opBase), number)
}
