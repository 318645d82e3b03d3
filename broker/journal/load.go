package journal

import (
	"errors"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/broker/wal"
)

// scan finds out what is live, and where.
func (j *Journal) scan() error {
	var base uint64
	err := j.log.Scan(0, func(at wal.Place, body []byte) error {
		at.At += wal.HeadSize
		for len(body) > 0 {
			op, err := nextOp(body)
			if err != nil {
				return err
			}
			if op.kind == opBase {
				base = max(base, op.id)
			} else {
				j.account(op.id, place{uint32(at.Segment), uint32(at.At), uint32(op.size)}, op.kind == opPut)
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
			return j.log.Damaged(wal.Place{Segment: number}, errors.New("it has records that were copied, and are missing where they were copied to"))
		}
	}
	return j.log.Begin(base)
}

// Load goes through the live records; commits wait as long. A value is only valid
// during the call. An error from each ends it, and names the file.
func (j *Journal) Load(each func(id uint64, value []byte) error) error {
	j.files.Lock()
	defer j.files.Unlock()
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

// ErrDamaged is what [Journal.Read] returns of a record that can't be read any more.
var ErrDamaged = errors.New("damaged")

// Read hands over the values of live records, in the order of their numbers in ids. A value is
// only valid during the call.
func (j *Journal) Read(ids []uint64, each func(i int, value []byte) error) error {
	j.files.Lock()
	defer j.files.Unlock()
	var buf []byte
	for i, id := range ids {
		p, ok := j.index.get(id)
		if !ok {
			return fmt.Errorf("%w: record %d isn't there", ErrDamaged, id)
		}
		if cap(buf) < int(p.size) {
			buf = make([]byte, max(p.size, 1<<10))
		}
		at := wal.Place{Segment: uint64(p.segment), At: int64(p.at)}
		if err := j.log.ReadAt(buf[:p.size], at); passing(err) {
			return err
		} else if err != nil {
			return j.unread(err)
		}
		op, err := nextOp(buf[:p.size])
		if err == nil && (op.kind != opPut || op.id != id || op.size != int(p.size)) {
			err = errOperation
		}
		if err == nil {
			err = each(i, op.value)
		}
		if err != nil {
			return j.unread(j.log.Damaged(at, err))
		}
	}
	return nil
}

// unread takes note of damage, and says so once.
func (j *Journal) unread(err error) error {
	if j.damage.CompareAndSwap(nil, &unreadable{err}) {
		j.opts.Log.Error().Err(err).Msg(j.opts.Name + ": a file that is needed can't be read: the log is not compacted any more")
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func (j *Journal) loadSegment(r *wal.Reader, each func(uint64, []byte) error) error {
	for {
		body, at, err := r.Next()
		if err != nil {
			return ignore(io.EOF, err)
		}
		if err := j.loadFrame(at, body, each); err != nil {
			return j.log.Damaged(at, err)
		}
	}
}

func (j *Journal) loadFrame(at wal.Place, body []byte, each func(uint64, []byte) error) error {
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
