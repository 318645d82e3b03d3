package journal

import (
	"errors"
	"os"
)

// sweep is the copying of what is live in the oldest segment to the log's end, bit
// by bit, between groups.
type sweep struct {
	text []byte // of the segment
	at   int64  // of the next frame
	body []byte // what is left of the frame before it
	from int64  // where body begins
}

const (
	sweepBytes = 256 << 10 // looked at between two groups
	slack      = 2         // dead segments that nobody minds
)

// compact goes on with making the log shorter, if it is too long for what is live, and
// says whether it did, and may have more to do. After a failure it waits for a commit to succeed.
func (j *Journal) compact() bool {
	if j.failing || j.sweep == nil && !j.wasteful() {
		return false
	}
	j.files.Lock()
	defer j.files.Unlock()
	if err := j.sweepOn(); err != nil {
		j.sweep = nil // from the beginning, with the next group
		if !j.failing {
			j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": not compacted")
		}
		j.failing = true
		return false
	}
	return true
}

func (j *Journal) wasteful() bool {
	return len(j.segments) > 1 && j.stats.bytes.Load() > 2*j.stats.live.Load()+slack*int64(j.opts.Segment)
}

func (j *Journal) sweepOn() error {
	oldest := j.segments[0]
	if j.sweep == nil {
		if oldest.live == 0 {
			return j.drop(newGroup())
		}
		text, err := os.ReadFile(oldest.path)
		if err != nil {
			return err
		}
		j.sweep = &sweep{text: text, at: headerSize}
	}
	g := newGroup()
	more, err := j.copyLive(g)
	if err != nil {
		return err
	}
	j.stats.compacted.Add(int64(len(g.buf)))
	if more {
		if g.empty() {
			return nil
		}
		return j.commit(g)
	}
	return j.drop(g)
}

// copyLive puts the next few live records of the oldest segment into a group, and
// says whether there are more.
func (j *Journal) copyLive(g *group) (more bool, err error) {
	sw, oldest := j.sweep, j.segments[0]
	for looked := 0; looked < sweepBytes; {
		if len(sw.body) == 0 {
			if sw.at >= oldest.size {
				return false, nil
			}
			body, ok := frameAt(sw.text, oldest.number, sw.at)
			if !ok {
				return false, j.damaged(oldest.path, sw.at, errors.New("it was well when it was opened"))
			}
			sw.body, sw.from = body, sw.at+frameHead
			sw.at += int64(frameHead + len(body))
			continue
		}
		op, err := nextOp(sw.body)
		if err != nil {
			return false, j.damaged(oldest.path, sw.from, err)
		}
		p, ok := j.index[op.id]
		if ok && op.kind == opPut && p.segment == oldest.number && int64(p.at) == sw.from {
			g.add(Change{op.id, op.value})
		}
		sw.body, sw.from = sw.body[op.size:], sw.from+int64(op.size)
		looked += op.size
	}
	return true, nil
}

// drop makes the last copies durable, together with the word that the oldest segment
// is not needed any more, and removes it.
func (j *Journal) drop(g *group) error {
	oldest := j.segments[0]
	g.addBase(oldest.number + 1)
	if err := j.write(g); err != nil {
		return err
	}
	j.base = oldest.number + 1
	j.segments = j.segments[1:]
	j.sweep = nil
	j.stats.bytes.Add(-oldest.size)
	_ = os.Remove(oldest.path) // or when the journal is next opened
	j.rotate()
	return nil
}
