// Package journal keeps numbered records on disk: what is put stays, until it is
// put anew or deleted, through kill -9 and power loss. The records of all callers
// share commits.
//
// It is a log in segments (package wal) with an index. A group of commits is one
// frame, one write and one sync. What is live in the oldest segment is copied to the end of the
// log when most of the log is dead, and the segment removed: disk space and
// starting time are bounded by what is live.
//
// The package never looks into a record, never blocks who commits, and never
// repairs what is damaged: it refuses to open it, and names the file.
package journal

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/wal"
)

// ErrClosed is the outcome of commits that come after Close.
var ErrClosed = errors.New("the journal is closed")

// Change puts a record, or deletes it if Value is nil. Deleting what isn't there
// is no mistake.
type Change struct {
	ID    uint64
	Value []byte
}

// Options are what a journal is made from. Only Dir is needed.
type Options struct {
	Dir     string
	Name    string // of the journal, in messages; "the journal"
	Keeps   string // what is lost without it, in messages; "the records"
	Log     zerolog.Logger
	Segment int           // bytes after which a segment is ended; 16 MiB
	Lazy    time.Duration // how long changes wait that nobody waits for; 100 ms
	// Committed is told of each group that was written, or could not be: how long it
	// took, and how many commits were in it. It must not block, and may be nil.
	Committed func(took time.Duration, commits int, err error)
	// ReadOnly opens what is there for Load, as somebody does who only looks: nothing is
	// made, mended, locked or removed, and commits are refused.
	ReadOnly bool
}

// Journal is an open journal.
type Journal struct {
	opts Options
	log  *wal.Log

	mu      sync.Mutex
	filling *group
	writing int  // bytes of the group that is being written
	due     bool // the lazy have waited for long enough
	closing bool
	wake    chan struct{}
	lazy    *time.Timer
	stopped chan struct{}

	turn sync.Mutex // from taking a group to having told its outcome, so that outcomes are in order

	// Written by whose turn it is; Load reads.
	files    sync.Mutex
	index    index
	live     map[uint64]int64 // bytes of live operations, by segment
	written  *group           // being written, or spare
	sweep    *sweep
	failing  bool
	littered bool // the oldest segment isn't needed, and could not be removed

	damage atomic.Pointer[unreadable] // found by compaction; nil: none

	stats struct {
		commits, groups, failed, live, records, compacted atomic.Int64
	}
}

// place is where a live record is.
type place struct {
	segment uint32
	at      uint32 // of the operation, from the beginning of the file
	size    uint32 // of the whole operation
}

// Stats is a snapshot for metrics. Counts are since the journal was opened.
type Stats struct {
	Commits   int64 // that were made durable
	Groups    int64 // that they were made durable in
	Failed    int64 // commits that failed
	Bytes     int64 // of the files, now
	Live      int64 // of them in live records
	Waiting   int64 // bytes that are not on disk yet, now
	Records   int64 // live, now
	Segments  int64 // files, now
	Compacted int64 // bytes copied by compaction
	Damaged   bool  // a file that is needed can't be read, see Damage
}

// Register adds the metrics of the journal, as those of a store of that name.
func (j *Journal) Register(r prometheus.Registerer, store string) {
	f, labels := promauto.With(r), prometheus.Labels{"store": store}
	gauge := func(name, help string, value func(Stats) int64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "edgebus", Subsystem: "journal", Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(j.Stats())) })
	}
	gauge("waiting_bytes", "Bytes handed to a journal that are not on disk yet.", func(s Stats) int64 { return s.Waiting })
	gauge("size_bytes", "Bytes of its files.", func(s Stats) int64 { return s.Bytes })
	gauge("live_bytes", "Bytes of its files in live records.", func(s Stats) int64 { return s.Live })
	gauge("records", "Its live records.", func(s Stats) int64 { return s.Records })
	gauge("segments", "Its files.", func(s Stats) int64 { return s.Segments })
	gauge("damaged", "1 when a file that is needed can't be read.", func(s Stats) int64 {
		if s.Damaged {
			return 1
		}
		return 0
	})
	f.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "edgebus", Subsystem: "journal", Name: "compacted_bytes_total", Help: "Bytes that compaction copied.", ConstLabels: labels,
	}, func() float64 { return float64(j.Stats().Compacted) })
}

// Damage says what is wrong with a file that is needed, as far as compaction has come across
// it; nil: nothing. It stays until the journal is opened again, which it won't be.
func (j *Journal) Damage() error {
	if d := j.damage.Load(); d != nil {
		return d.error
	}
	return nil
}

// Stats takes a snapshot.
func (j *Journal) Stats() Stats {
	s := &j.stats
	j.mu.Lock()
	waiting := j.writing + len(j.filling.buf) - wal.HeadSize
	j.mu.Unlock()
	return Stats{
		Waiting: int64(waiting), Segments: j.log.Count(),
		Commits: s.commits.Load(), Groups: s.groups.Load(), Failed: s.failed.Load(), Bytes: j.log.Size(),
		Live: s.live.Load(), Records: s.records.Load(), Compacted: s.compacted.Load(),
		Damaged: j.damage.Load() != nil,
	}
}

// InPlace says whether a file of the journal was removed, moved or replaced since it was opened.
func (j *Journal) InPlace() error { return j.log.InPlace() }

// Snapshot is the journal as it is at one moment, with all commits whose outcome was told.
// also is called at that moment, while nothing is committed; see [wal.Log.Snapshot].
func (j *Journal) Snapshot(also func() error) (pieces []wal.Piece, release func(), err error) {
	return j.log.Snapshot(also)
}

// Open opens the journal in a directory, which it makes if need be.
func Open(opts Options) (*Journal, error) { return open(opts, nil) }

func (o *Options) setDefaults() {
	if o.Segment == 0 {
		o.Segment = 16 << 20
	}
	if o.Lazy == 0 {
		o.Lazy = 100 * time.Millisecond
	}
	if o.Name == "" {
		o.Name = "the journal"
	}
	if o.Keeps == "" {
		o.Keeps = "the records"
	}
}

func open(opts Options, wrap func(*os.File) wal.File) (*Journal, error) {
	opts.setDefaults()
	log, err := wal.Open(wal.Options{
		Dir: opts.Dir, Name: opts.Name, Keeps: opts.Keeps, Segment: opts.Segment, Log: opts.Log, ReadOnly: opts.ReadOnly, Wrap: wrap,
	})
	if err != nil {
		return nil, err
	}
	j := &Journal{
		opts: opts, log: log, filling: newGroup(), written: newGroup(), index: newIndex(), live: make(map[uint64]int64),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	if err := j.scan(); err != nil {
		_ = log.Close()
		return nil, err
	}
	if opts.ReadOnly {
		j.closing = true
		close(j.stopped)
		return j, nil
	}
	j.lazy = time.AfterFunc(time.Hour, j.lazyDue)
	j.lazy.Stop()
	go j.run()
	return j, nil
}

// Commit makes the changes durable, all or none. It never blocks. done is called
// once that is done, or can't be, never before Commit returns or on its goroutine,
// and in the order of the commits. With done nil nobody waits: the changes go with the next group,
// or after a while, and if that fails, with one after it.
func (j *Journal) Commit(changes []Change, done func(error)) {
	taken, urgent := j.enqueue(changes, done)
	switch {
	case urgent:
		j.wakeUp()
	case !taken && done != nil:
		go done(ErrClosed)
	}
}

// enqueue lets the changes wait for the next group, unless the journal is closed. The
// committer must be woken when they are the first in it that are urgent.
func (j *Journal) enqueue(changes []Change, done func(error)) (taken, urgent bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return false, false
	}
	g := j.filling
	first := len(g.calls) == 0
	for _, c := range changes {
		g.add(c)
	}
	g.calls = append(g.calls, call{done, len(g.ops)})
	urgent = !g.urgent && (done != nil || len(g.buf) > lazyBytes)
	g.urgent = g.urgent || urgent
	if first && !urgent {
		j.lazy.Reset(j.opts.Lazy)
	}
	return true, urgent
}

const lazyBytes = 1 << 20 // what nobody waits for waits no longer than until it is this much

func (j *Journal) lazyDue() {
	j.mu.Lock()
	j.due = true
	j.mu.Unlock()
	j.wakeUp()
}

func (j *Journal) wakeUp() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Close commits what waits, and closes the files.
func (j *Journal) Close() error {
	j.mu.Lock()
	again := j.closing
	j.closing = true
	j.mu.Unlock()
	if again {
		<-j.stopped
		return nil
	}
	j.lazy.Stop()
	j.wakeUp()
	<-j.stopped
	return j.log.Close()
}

// Sequence is where the numbers of a sequence begin: records that are numbered, and mostly
// forgotten, in order. Of such a record no more than its place is in memory, 12 bytes. Any
// other may have any smaller number.
const Sequence = 1 << 41

const pageLen = 256

// index says where each live record is.
type index struct {
	others map[uint64]place
	pages  map[uint64]*page // of the sequence, by number
	count  int
}

type page struct {
	count  int
	places [pageLen]place // with size 0: none
}

func newIndex() index {
	return index{others: make(map[uint64]place), pages: make(map[uint64]*page)}
}

func (x *index) get(id uint64) (p place, ok bool) {
	if id < Sequence {
		p, ok = x.others[id]
		return p, ok
	}
	if pg := x.pages[id/pageLen]; pg != nil {
		p = pg.places[id%pageLen]
	}
	return p, p.size > 0
}

func (x *index) put(id uint64, p place) {
	if _, ok := x.get(id); !ok {
		x.count++
	}
	if id < Sequence {
		x.others[id] = p
		return
	}
	pg := x.pages[id/pageLen]
	if pg == nil {
		pg = &page{}
		x.pages[id/pageLen] = pg
	}
	if pg.places[id%pageLen].size == 0 {
		pg.count++
	}
	pg.places[id%pageLen] = p
}

func (x *index) remove(id uint64) {
	if _, ok := x.get(id); !ok {
		return
	}
	x.count--
	if id < Sequence {
		delete(x.others, id)
		return
	}
	pg := x.pages[id/pageLen]
	pg.places[id%pageLen] = place{}
	if pg.count--; pg.count == 0 {
		delete(x.pages, id/pageLen)
	}
}

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
