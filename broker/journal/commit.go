package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// maxFrame keeps places within 32 bits.
const maxFrame = 1 << 30

// run is the committer: it writes for those who don't wait, and shortens the log. It
// ends when the journal closes and nothing waits.
func (j *Journal) run() {
	defer close(j.stopped)
	for range j.wake {
		for more := true; more; {
			j.turn.Lock()
			g, closing := j.gather(true)
			if g != nil {
				j.process(g)
			}
			more = j.compact() || g != nil
			j.turn.Unlock()
			if g == nil && closing {
				return
			}
		}
	}
}

// Sync makes the changes durable like Commit, and returns once they are, or can't be. The
// caller writes them by itself, with what else waits: no other goroutine has to wake up
// for it. It must not be called from a done.
func (j *Journal) Sync(changes []Change) (err error) {
	settled := false // by whoever's turn it is
	taken, _ := j.enqueue(changes, func(outcome error) { err, settled = outcome, true })
	if !taken {
		return ErrClosed
	}
	j.turn.Lock()
	defer j.turn.Unlock()
	if !settled {
		g, _ := j.gather(false)
		j.process(g)
	}
	if j.sweep != nil || j.wasteful() {
		j.wakeUp()
	}
	return err
}

// gather takes all that waits, if any of it is urgent. Those whom the last group answered
// are about to come back: giving way to them makes groups of all instead of two halves.
func (j *Journal) gather(giveWay bool) (g *group, closing bool) {
	for seen := -1; ; {
		j.mu.Lock()
		g = j.filling
		if len(g.calls) == 0 || !g.urgent && !j.due && !j.closing {
			closing = j.closing
			j.mu.Unlock()
			return nil, closing
		}
		if !giveWay || len(g.calls) == seen || len(g.buf) > keepGroup {
			j.filling, j.written, j.due = j.written, nil, false
			j.writing = len(g.buf) - frameHead
			j.mu.Unlock()
			return g, false
		}
		seen = len(g.calls)
		j.mu.Unlock()
		runtime.Gosched()
	}
}

const retry = time.Second // of what nobody waits for, after a failure

// process makes a group durable and says so. It is called by whose turn it is.
func (j *Journal) process(g *group) {
	began := time.Now()
	j.files.Lock()
	err := j.commit(g)
	j.files.Unlock()
	if j.opts.Committed != nil && !g.empty() {
		j.opts.Committed(time.Since(began), len(g.ops), err)
	}
	if err != nil {
		j.stats.failed.Add(int64(len(g.calls)))
		if !j.failing {
			j.opts.Log.Error().Err(err).Int("commits", len(g.calls)).Msg(j.opts.Name + ": commit failed; trying again with the next")
		}
	} else {
		j.stats.commits.Add(int64(len(g.calls)))
		j.stats.groups.Add(1)
		if j.failing {
			j.opts.Log.Info().Msg(j.opts.Name + ": commits again")
		}
	}
	j.failing = err != nil
	for _, c := range g.calls {
		if c.done != nil {
			c.done(err)
		}
	}
	j.mu.Lock()
	if err != nil && !j.closing {
		j.filling.again(g)
		j.lazy.Reset(retry)
	}
	g.reset()
	j.written, j.writing = g, 0
	j.mu.Unlock()
	j.stats.segments.Store(int64(len(j.segments)))
}

// commit writes a group and syncs it.
func (j *Journal) commit(g *group) error {
	if g.empty() {
		return nil
	}
	if len(g.buf) > maxFrame {
		return fmt.Errorf("%d bytes in one commit", len(g.buf))
	}
	if err := j.write(g); err != nil {
		return err
	}
	j.rotate()
	return nil
}

// write appends a group, and takes it into the index once it is durable.
func (j *Journal) write(g *group) error {
	if err := j.mend(); err != nil {
		return err
	}
	if j.current().size > maxFrame {
		if err := j.begin(j.current().number + 1); err != nil {
			return err
		}
	}
	s := j.current()
	seal(g.buf, s.number, s.size)
	_, err := j.file.WriteAt(g.buf, s.size)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		j.suspect = true
		_ = j.mend() // or before the next group
		return fmt.Errorf("%s: %w", s.path, err)
	}
	from := s.size
	s.size += int64(len(g.buf))
	j.stats.bytes.Add(int64(len(g.buf)))
	for _, m := range g.ops {
		j.account(m.id, place{s.number, uint32(from) + m.at, m.size}, m.put)
	}
	return nil
}

// mend takes off the file what a failed write has left: nobody was promised it, and
// it must not come back.
func (j *Journal) mend() error {
	if !j.suspect {
		return nil
	}
	s := j.current()
	if err := j.file.Truncate(s.size); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	j.suspect = false
	return nil
}

// account keeps the index, and how much of each segment is live.
func (j *Journal) account(id uint64, p place, put bool) {
	if old, ok := j.index[id]; ok {
		if s := j.segment(old.segment); s != nil {
			s.live -= int64(old.size)
		}
		j.stats.live.Add(-int64(old.size))
	}
	if put {
		j.index[id] = p
		j.segment(p.segment).live += int64(p.size)
		j.stats.live.Add(int64(p.size))
	} else {
		delete(j.index, id)
	}
	j.stats.records.Store(int64(len(j.index)))
}

func (j *Journal) current() *segment { return j.segments[len(j.segments)-1] }

func (j *Journal) segment(number uint64) *segment {
	if i := number - j.segments[0].number; i < uint64(len(j.segments)) {
		return j.segments[i]
	}
	return nil
}

// rotate begins another segment when this one is long enough. When it can't, the
// commit stands, and this segment is used for longer.
func (j *Journal) rotate() {
	if j.current().size < int64(j.opts.Segment) {
		return
	}
	if err := j.begin(j.current().number + 1); err != nil && !j.failing {
		j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": no new segment")
	}
}

func (j *Journal) path(number uint64) string {
	return filepath.Join(j.opts.Dir, fmt.Sprintf("%012d.log", number))
}

// begin makes a segment, and writes to it from then on. It gets its name when its
// header is on disk: a segment without one is damaged.
func (j *Journal) begin(number uint64) error {
	path := j.path(number)
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := j.wrap(f)
	_, err = w.WriteAt(appendHeader(nil, number, j.base), 0)
	if err == nil {
		err = w.Sync()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(j.opts.Dir)
	}
	if err != nil {
		_ = w.Close()
		_ = os.Remove(path + ".new")
		_ = os.Remove(path)
		return fmt.Errorf("%s: %w", path, err)
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file = w
	j.segments = append(j.segments, &segment{number: number, path: path, size: headerSize})
	j.stats.bytes.Add(headerSize)
	return nil
}
