package journal

import (
	"runtime"
	"time"

	"github.com/edgebus/edgebus/broker/wal"
)

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
			j.writing = len(g.buf) - wal.HeadSize
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
		j.filling.again(g, &j.index)
		j.lazy.Reset(retry)
	}
	g.reset()
	j.written, j.writing = g, 0
	j.mu.Unlock()
}

// commit makes a group durable, and takes it into the index.
func (j *Journal) commit(g *group) error {
	if g.empty() {
		return nil
	}
	at, err := j.log.Append(g.buf)
	if err != nil {
		return err
	}
	for _, m := range g.ops {
		j.account(m.id, place{uint32(at.Segment), uint32(at.At) + m.at, m.size}, m.put)
	}
	return nil
}

// account keeps the index, and how much of each segment is live.
func (j *Journal) account(id uint64, p place, put bool) {
	if old, ok := j.index.get(id); ok {
		j.live[uint64(old.segment)] -= int64(old.size)
		j.stats.live.Add(-int64(old.size))
	}
	if put {
		j.index.put(id, p)
		j.live[uint64(p.segment)] += int64(p.size)
		j.stats.live.Add(int64(p.size))
	} else {
		j.index.remove(id)
	}
	j.stats.records.Store(int64(j.index.count))
}
