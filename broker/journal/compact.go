package journal

import (
	"errors"
	"io"
	"syscall"

	"github.com/edgebus/edgebus/broker/wal"
)

// sweep is the copying of what is live in the oldest segment to the log's end, bit
// by bit, between groups.
type sweep struct {
	segment *wal.Reader
	body    []byte    // what is left of the frame that was read last
	from    wal.Place // where body begins
}

const (
	sweepBytes = 256 << 10 // looked at between two groups
	slack      = 2         // dead segments that nobody minds
)

// compact goes on with making the log shorter, if it is too long for what is live, and
// says whether it did, and may have more to do. After a failure it waits for a commit to
// succeed; what can't be read won't be read better, and then the log only grows.
func (j *Journal) compact() bool {
	if j.failing || j.damage.Load() != nil || j.sweep == nil && !j.wasteful() {
		return false
	}
	j.files.Lock()
	defer j.files.Unlock()
	err := j.sweepOn()
	if err == nil {
		j.littered = false
		return true
	}
	j.endSweep() // from the beginning, with the next group
	unread, unremoved := (*unreadable)(nil), (*unremovable)(nil)
	switch {
	case errors.As(err, &unread):
		_ = j.unread(unread)
	case errors.As(err, &unremoved):
		if !j.littered {
			j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": a file that isn't needed can't be removed; trying again later")
		}
		j.littered = true
	default:
		j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": not compacted")
		j.failing = true
	}
	return false
}

// unreadable is a segment that can't be read, with records in it that are needed.
type unreadable struct{ error }

// unremovable is a segment that is not needed, and is still there.
type unremovable struct{ error }

// passing says whether what can't be read now may be later.
func passing(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func (j *Journal) endSweep() {
	if j.sweep != nil {
		j.sweep.segment.Close()
		j.sweep = nil
	}
}

func (j *Journal) wasteful() bool {
	return j.log.Count() > 1 && j.log.Size() > 2*j.stats.live.Load()+slack*int64(j.opts.Segment)
}

func (j *Journal) sweepOn() error {
	oldest, _ := j.log.Segments()
	if j.sweep == nil {
		if base := j.log.Base(); oldest < base { // it could not be removed
			return j.remove(base)
		}
		if j.live[oldest] == 0 {
			return j.drop(newGroup(), oldest)
		}
		r, err := j.log.Read(oldest, nil)
		if err != nil && !passing(err) {
			return &unreadable{err}
		} else if err != nil {
			return err
		}
		j.sweep = &sweep{segment: r}
	}
	g := newGroup()
	more, err := j.copyLive(g)
	if err != nil {
		return &unreadable{err}
	}
	j.stats.compacted.Add(int64(len(g.buf)))
	if more {
		return j.commit(g)
	}
	return j.drop(g, oldest)
}

// copyLive puts the next few live records of the oldest segment into a group, and
// says whether there are more.
func (j *Journal) copyLive(g *group) (more bool, err error) {
	sw := j.sweep
	for looked := 0; looked < sweepBytes; {
		if len(sw.body) == 0 {
			if sw.body, sw.from, err = sw.segment.Next(); err != nil {
				return false, ignore(io.EOF, err)
			}
			sw.from.At += wal.HeadSize
			continue
		}
		op, err := nextOp(sw.body)
		if err != nil {
			return false, j.log.Damaged(sw.from, err)
		}
		if op.kind == opPut && j.isLive(op.id, sw.from) {
			g.add(Change{op.id, op.value})
		}
		sw.body, sw.from.At = sw.body[op.size:], sw.from.At+int64(op.size)
		looked += op.size
	}
	return true, nil
}

func ignore(what, err error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// isLive is whether the operation at a place is a record's last.
func (j *Journal) isLive(id uint64, at wal.Place) bool {
	p, ok := j.index.get(id)
	return ok && uint64(p.segment) == at.Segment && int64(p.at) == at.At
}

// drop makes the last copies durable, together with the word that the oldest segment
// is not needed any more, and removes it.
func (j *Journal) drop(g *group, oldest uint64) error {
	g.addBase(oldest + 1)
	if err := j.commit(g); err != nil {
		return err
	}
	j.endSweep()
	delete(j.live, oldest)
	return j.remove(oldest + 1)
}

// remove removes the segments before base, the oldest first.
func (j *Journal) remove(base uint64) error {
	if err := j.log.Retire(base); err != nil {
		return &unremovable{err}
	}
	return nil
}
