// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/broker/wal"
)

// scan builds the index.
func (j *Journal) scan() error {
	var base uint64
	err := j.log.Scan(0, func(at wal.Position, body []byte) error {
		at.At += wal.HeadSize
		for len(body) > 0 {
			op, err := nextOp(body)
			if err != nil {
				return err
			}
			version, err := op.versionIn()
			if err != nil {
				return err
			}
			if version > 0 {
				j.version.Store(version)
			}
			if op.kind == opBase {
				base = max(base, op.id)
			} else {
				j.account(op.id, recordPlace{uint32(at.Segment), uint32(at.At), uint32(op.size)}, op.kind == opPut)
			}
			at.At += int64(op.size)
			body = body[op.size:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	base = max(base, j.log.Base())
	for number, live := range j.live {
		if number < base && live > 0 {
			return j.log.Damaged(wal.Position{Segment: number}, errors.New("it has records that were copied, and are missing where they were copied to"))
		}
	}
	return j.log.Begin(base)
}

// Load goes through the live records. Commits wait meanwhile. A value is valid during the call only. An error of each ends
// it, and is returned with the file's name.
func (j *Journal) Load(each func(id uint64, value []byte) error) error {
	j.places.RLock()
	defer j.places.RUnlock()
	var r *wal.Reader
	defer func() { r.Close() }()
	oldest, newest := j.log.Segments()
	for number := oldest; number <= newest; number++ {
		if j.live[number] == 0 {
			continue
		}
		var err error
		if r, err = j.log.Read(number, r); err != nil {
			return err
		}
		if err := j.loadSegment(r, each); err != nil {
			return err
		}
	}
	return nil
}

// TableShift is where the number of a table begins in the ids of its records.
const TableShift = 56

// Table is the part of a journal that has one owner: the records whose ids begin with a number, which the ids in changes have too. What owners
// commit at the same time is one write.
type Table struct {
	*Journal
	number uint64
}

// Table is the table with a number.
func (j *Journal) Table(number uint8) Table { return Table{j, uint64(number)} }

// Load goes through the table's live records, as [Journal.Load] does through all.
func (t Table) Load(each func(id uint64, value []byte) error) error {
	return t.Journal.Load(func(id uint64, value []byte) error {
		if id>>TableShift != t.number {
			return nil
		}
		return each(id, value)
	})
}

// SyncReserved is [Journal.Sync] of what the owner can't start or go on without: on a full disk the reserve is for that, too.
func (t Table) SyncReserved(changes []RecordChange) error { return t.sync(changes, true) }

// Dir is the directory.
func (j *Journal) Dir() string { return j.opts.Dir }

// Damaged returns the error for records that can't be used by their owner.
func (j *Journal) Damaged(what error) error {
	oldest, _ := j.log.Segments()
	return j.log.Damaged(wal.Position{Segment: oldest}, what)
}

// ErrDamaged is what [Journal.Read] returns of a record that can't be read any more.
var ErrDamaged = errors.New("damaged")

// Read goes through the values of live records, in the order of ids. It never waits for a commit. A value is valid during the call
// only.
func (j *Journal) Read(ids []uint64, each func(i int, value []byte) error) error {
	j.places.RLock()
	defer j.places.RUnlock()
	var buf []byte
	for i := 0; i < len(ids); {
		near, err := j.nearbyPlaces(ids[i:])
		if err != nil {
			return err
		}
		first, last := near[0], near[len(near)-1]
		size := int(last.at) + int(last.size) - int(first.at)
		if cap(buf) < size {
			buf = make([]byte, max(size, 1<<10))
		}
		at := wal.Position{Segment: uint64(first.segment), At: int64(first.at)}
		if err = j.log.ReadAt(buf[:size], at); err != nil && len(near) > 1 { // the first ones may be whole
			near = near[:1]
			err = j.log.ReadAt(buf[:first.size], at)
		}
		if isTemporary(err) {
			return err
		} else if err != nil {
			return j.recordDamage(err)
		}
		for k, p := range near {
			if err := readRecord(buf[p.at-first.at:][:p.size], ids[i+k], func(value []byte) error { return each(i+k, value) }); err != nil {
				return j.recordDamage(j.log.Damaged(wal.Position{Segment: at.Segment, At: int64(p.at)}, err))
			}
		}
		i += len(near)
	}
	return nil
}

// Records that lie this close together in a file are read at once, up to so many bytes: a read of the system costs about as much
// as these bytes do.
const (
	readGap  = 4 << 10
	readSpan = 64 << 10
)

// nearbyPlaces finds the places of the first ids, of those that can be read at once: at least one.
func (j *Journal) nearbyPlaces(ids []uint64) (list []recordPlace, err error) {
	for _, id := range ids {
		p, ok := j.index.get(id)
		if !ok {
			if len(list) > 0 {
				break // the next call says so
			}
			return nil, fmt.Errorf("%w: record %d isn't there", ErrDamaged, id)
		}
		if n := len(list); n > 0 {
			end := int(list[n-1].at) + int(list[n-1].size)
			if p.segment != list[0].segment || int(p.at) < end || int(p.at) > end+readGap || int(p.at)+int(p.size)-int(list[0].at) > readSpan {
				break
			}
		}
		list = append(list, p)
	}
	return list, nil
}

// readRecord decodes the record with an ID.
func readRecord(b []byte, id uint64, value func([]byte) error) error {
	op, err := nextOp(b)
	if err != nil {
		return err
	}
	if op.kind != opPut || op.id != id || op.size != len(b) {
		return errOperation
	}
	return value(op.value)
}

// recordDamage keeps the first damage found, and logs it.
func (j *Journal) recordDamage(err error) error {
	if j.damage.CompareAndSwap(nil, &unreadableError{err}) {
		j.opts.Log.Error().Err(err).Msg(j.opts.Name + ": a file that is needed can't be read: the log is not compacted any more")
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func (j *Journal) loadSegment(r *wal.Reader, each func(uint64, []byte) error) error {
	for {
		body, at, err := r.Next()
		if err != nil {
			return ignoreError(io.EOF, err)
		}
		if err := j.loadFrame(at, body, each); err != nil {
			return j.log.Damaged(at, err)
		}
	}
}

func (j *Journal) loadFrame(at wal.Position, body []byte, each func(uint64, []byte) error) error {
	at.At += wal.HeadSize
	for len(body) > 0 {
		op, err := nextOp(body)
		if err != nil {
			return err
		}
		if op.kind == opPut && j.isLive(op.id, at) {
			if err := each(op.id, op.value); err != nil {
				return fmt.Errorf("record %d: %w", op.id, err)
			}
		}
		at.At += int64(op.size)
		body = body[op.size:]
	}
	return nil
}

// A frame of the log is operations, one after the other: a put is 1, record, length,
// value; a delete is 2, record; base, the oldest segment needed, is 3, segment number.
const (
	opPut    = 1
	opDelete = 2
	opBase   = 3
)

// frameOperation is an operation of a frame.
type frameOperation struct {
	kind  byte
	id    uint64 // record, or segment number
	value []byte
	size  int
}

// nextOp decodes the first operation.
func nextOp(b []byte) (op frameOperation, err error) {
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

// commitGroup is the commits that one write makes durable.
type commitGroup struct {
	buf    []byte // a frame, with its head still to be filled in
	ops    []groupOperation
	calls  []groupCommit
	urgent bool
}

// groupCommit is one commit, with the end of its operations.
type groupCommit struct {
	done     func(error) // nil: nobody waits
	ops      int
	reserved bool // it is of SyncReserved
	stored   bool // although its group was not, see commitReserved
}

// groupOperation is the place of an operation in a group.
type groupOperation struct {
	id   uint64
	at   uint32
	size uint32
	put  bool
}

func newCommitGroup() *commitGroup { return &commitGroup{buf: make([]byte, wal.HeadSize)} }

const maxKeptGroup = 4 << 20

func (g *commitGroup) reset() {
	if cap(g.buf) > maxKeptGroup {
		*g = *newCommitGroup()
		return
	}
	clear(g.calls)
	*g = commitGroup{buf: g.buf[:wal.HeadSize], ops: g.ops[:0], calls: g.calls[:0]}
}

func (g *commitGroup) empty() bool { return len(g.buf) == wal.HeadSize }

func (g *commitGroup) add(c RecordChange) {
	at := len(g.buf)
	if c.Value == nil {
		g.buf = binary.AppendUvarint(append(g.buf, opDelete), c.ID)
	} else {
		g.buf = binary.AppendUvarint(append(g.buf, opPut), c.ID)
		g.buf = binary.AppendUvarint(g.buf, uint64(len(c.Value)))
		g.buf = append(g.buf, c.Value...)
	}
	g.ops = append(g.ops, groupOperation{c.ID, uint32(at), uint32(len(g.buf) - at), c.Value != nil})
}

// copyOp adds an operation of another group.
func (g *commitGroup) copyOp(m groupOperation, buf []byte) {
	at := uint32(len(g.buf))
	g.buf = append(g.buf, buf[m.at:m.at+m.size]...)
	g.ops = append(g.ops, groupOperation{m.id, at, m.size, m.put})
}

// requeue puts the changes without a done of a failed group before those of this one. Of each record the last change is kept,
// and none of a record that is not stored and is deleted: otherwise what comes and goes while the disk is full would pile
// up.
func (g *commitGroup) requeue(failed *commitGroup, stored *recordIndex) {
	last := make(map[uint64]groupOperation)
	begin := 0
	for _, c := range failed.calls {
		if c.done == nil && !c.stored {
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
	front := newCommitGroup()
	for _, m := range last {
		front.copyOp(m, failed.buf)
	}
	added := len(front.ops)
	front.calls = append(front.calls, groupCommit{ops: added})
	for _, m := range g.ops {
		front.copyOp(m, g.buf)
	}
	for _, c := range g.calls {
		c.ops += added
		front.calls = append(front.calls, c)
	}
	front.urgent = g.urgent
	*g = *front
}

// addBase retires the segments before number.
func (g *commitGroup) addBase(number uint64) {
	g.buf = binary.AppendUvarint(append(g.buf, opBase), number)
}
