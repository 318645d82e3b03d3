// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/wal"
)

// ErrClosed is the outcome of commits that come after Close.
var ErrClosed = errors.New("the journal is closed")

// RecordChange puts a record, or deletes it if Value is nil. Deleting a record that isn't there is no error. A change doesn't name what it replaces, and
// needn't: each record has one owner, whose commits are in order, and the log takes a group only behind what this journal has read of it
// (ordered.Log.Append), so that nobody else's changes are between.
type RecordChange struct {
	ID    uint64
	Value []byte
}

// Options configure a journal. Only Dir is needed.
type Options struct {
	Dir     string
	Name    string // of the journal, in messages; "the journal"
	Keeps   string // what is lost without it, in messages; "the records"
	Log     zerolog.Logger
	Segment int           // bytes after which a segment is ended; 16 MiB, or 1/32 of the disk if that is less
	Lazy    time.Duration // how long changes without a done may wait; 100 ms
	// Version is the highest version of records that the owners know: others are refused; 0: they have none.
	Version uint32
	// Committed is called for each group that was written, or could not be, with the number of its commits. It must not
	// block; nil: nothing is called.
	Committed func(took time.Duration, commits int, err error)
	// Through replaces the log to which groups are appended by another one in front of it, in tests; nil: nothing is.
	Through func(ordered.Log) ordered.Log
	// Shared appends a group to a log that others have as well, before it is appended here with where it is there; nil: there is none. With
	// an error of it nothing is stored here. Compaction stays here.
	Shared func(ctx context.Context, body []byte) (Origin, error)
	// ReadOnly opens the journal for Load alone: no file is made, changed, locked or removed, and commits are refused.
	ReadOnly bool
}

// Journal is an open journal.
type Journal struct {
	opts Options
	log  *wal.Log
	// order is the log to which groups are appended. What is local, compaction and what the reserve is for, is appended to log itself.
	order ordered.Log

	mu            sync.Mutex
	filling       *commitGroup
	writing       int  // bytes of the group that is being written
	lazyDelayOver bool // changes without a done have waited for long enough
	closing       bool
	wake          chan struct{}
	lazy          *time.Timer
	stopped       chan struct{}

	committing sync.Mutex // held from taking a group until its outcome was given, so that outcomes are in order

	// Written with places locked by the holder of committing, who reads them without. Who reads records has places locked for
	// reading until they are read, and never waits for an append: a segment is removed after places was locked for where its
	// records are now.
	places sync.RWMutex
	index  recordIndex
	live   map[uint64]int64 // bytes of live operations, by segment

	// Of the holder of committing.
	end        ordered.Position // of order
	written    *commitGroup     // being written, or spare
	compaction *compaction
	shared     sharedLog
	failing    bool
	unremoved  bool // the oldest segment isn't needed, and could not be removed

	damage  atomic.Pointer[unreadableError] // found by compaction; nil: none
	version atomic.Uint32                   // of the records; 0: none was set

	stats struct {
		commits, groups, failed, live, records, compacted atomic.Int64
		full                                              atomic.Bool // what failing is for
	}
}

// recordPlace is where a live record is.
type recordPlace struct {
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
	Full      bool  // the disk is full: only what makes room is stored
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
	gauge("damaged", "1 when a file that is needed can't be read.", func(s Stats) int64 { return boolGauge(s.Damaged) })
	gauge("full", "1 when the disk is full: only what makes room is stored.", func(s Stats) int64 { return boolGauge(s.Full) })
	f.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "edgebus", Subsystem: "journal", Name: "compacted_bytes_total", Help: "Bytes that compaction copied.", ConstLabels: labels,
	}, func() float64 { return float64(j.Stats().Compacted) })
}

func boolGauge(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// Damage is the damage that was found in a file that is needed; nil: none. It stays: the journal can't be opened again.
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
		Damaged: j.damage.Load() != nil, Full: s.full.Load(),
	}
}

// Renew makes the journal's log another one, as after a restore: who follows the one before doesn't take it for the same.
func (j *Journal) Renew() error { return wal.NewOrdered(j.log).Renew() }

// InPlace returns an error if a file of the journal was removed, moved or replaced since it was opened.
func (j *Journal) InPlace() error { return j.log.InPlace() }

// Snapshot is the journal as it is at one moment, with all commits whose outcome was given.
// also is called at that moment, while nothing is committed; see [wal.Log.Snapshot].
func (j *Journal) Snapshot(also func() error) (pieces []wal.SegmentSnapshot, release func(), err error) {
	return j.log.Snapshot(also)
}

// Open opens the journal in a directory, which it makes if need be.
func Open(opts Options) (*Journal, error) { return open(opts, nil) }

func (o *Options) setDefaults() {
	if o.Segment == 0 {
		o.Segment = int(max(min(16<<20, diskSize(o.Dir)/32), 64<<10))
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

// diskSize is that of the file system which a directory is in, or will be.
func diskSize(dir string) int64 {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return wal.DiskSize(dir)
		}
		dir = filepath.Dir(dir)
	}
}

// reserve is so large that any segment of usual length can be copied, and that what deletes its records can be stored before.
func (o *Options) reserve() int64 { return int64(o.Segment)*5/4 + 2*wal.ReserveSlack }

func open(opts Options, wrap func(*os.File) wal.File) (*Journal, error) {
	opts.setDefaults()
	log, err := wal.Open(wal.Options{
		Dir: opts.Dir, Name: opts.Name, Keeps: opts.Keeps, Segment: opts.Segment, Reserve: opts.reserve(), Log: opts.Log, ReadOnly: opts.ReadOnly, Wrap: wrap,
	})
	if err != nil {
		return nil, err
	}
	j := &Journal{
		opts: opts, log: log, filling: newCommitGroup(), written: newCommitGroup(), index: newRecordIndex(), live: make(map[uint64]int64),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	j.shared.append = opts.Shared
	if j.order = wal.NewOrdered(log); opts.Through != nil {
		j.order = opts.Through(j.order)
	}
	if err = j.scan(); err == nil {
		if err = j.opts.checkVersion(j.version.Load()); err != nil {
			err = fmt.Errorf("%s: %w", opts.Dir, err)
		}
	}
	if err == nil {
		_, j.end, err = j.order.Bounds(context.Background())
	}
	if err != nil {
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

// Commit makes the changes durable, all or none. It never blocks. done is called with the outcome, not before Commit
// returns and not on its goroutine, and in the order of the commits. Changes with a nil done are written with the next
// group, or after Options.Lazy, and if that fails, with a later one.
func (j *Journal) Commit(changes []RecordChange, done func(error)) {
	taken, urgent := j.enqueue(changes, groupCommit{done: done})
	switch {
	case urgent:
		j.wakeUp()
	case !taken && done != nil:
		go done(ErrClosed)
	}
}

// enqueue adds the changes to the next group, unless the journal is closed. If they are the first urgent ones in it, the
// committer has to be woken.
func (j *Journal) enqueue(changes []RecordChange, c groupCommit) (taken, urgent bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return false, false
	}
	g := j.filling
	first := len(g.calls) == 0
	for _, change := range changes {
		g.add(change)
	}
	c.ops = len(g.ops)
	g.calls = append(g.calls, c)
	urgent = !g.urgent && (c.done != nil || len(g.buf) > maxLazyBytes)
	g.urgent = g.urgent || urgent
	if first && !urgent {
		j.lazy.Reset(j.opts.Lazy)
	}
	return true, urgent
}

const maxLazyBytes = 1 << 20 // of changes without a done; more are urgent

func (j *Journal) lazyDue() {
	j.mu.Lock()
	j.lazyDelayOver = true
	j.mu.Unlock()
	j.wakeUp()
}

func (j *Journal) wakeUp() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Close commits all that is queued, and closes the files.
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
	j.endCompaction() // which may be amid a segment
	return j.log.Close()
}

// FirstSequenced is the first number of a sequence: records that are numbered, and mostly deleted, in order. The index needs 12
// bytes for each. Other records have smaller numbers.
const FirstSequenced = 1 << 41

const indexPageLen = 256

// recordIndex has the place of each live record.
type recordIndex struct {
	others map[uint64]recordPlace
	pages  map[uint64]*indexPage // of the sequence, by number
	count  int
}

type indexPage struct {
	count  int
	places [indexPageLen]recordPlace // with size 0: none
}

func newRecordIndex() recordIndex {
	return recordIndex{others: make(map[uint64]recordPlace), pages: make(map[uint64]*indexPage)}
}

func (x *recordIndex) get(id uint64) (p recordPlace, ok bool) {
	if id < FirstSequenced {
		p, ok = x.others[id]
		return p, ok
	}
	if pg := x.pages[id/indexPageLen]; pg != nil {
		p = pg.places[id%indexPageLen]
	}
	return p, p.size > 0
}

func (x *recordIndex) put(id uint64, p recordPlace) {
	if _, ok := x.get(id); !ok {
		x.count++
	}
	if id < FirstSequenced {
		x.others[id] = p
		return
	}
	pg := x.pages[id/indexPageLen]
	if pg == nil {
		pg = &indexPage{}
		x.pages[id/indexPageLen] = pg
	}
	if pg.places[id%indexPageLen].size == 0 {
		pg.count++
	}
	pg.places[id%indexPageLen] = p
}

func (x *recordIndex) remove(id uint64) {
	if _, ok := x.get(id); !ok {
		return
	}
	x.count--
	if id < FirstSequenced {
		delete(x.others, id)
		return
	}
	pg := x.pages[id/indexPageLen]
	pg.places[id%indexPageLen] = recordPlace{}
	if pg.count--; pg.count == 0 {
		delete(x.pages, id/indexPageLen)
	}
}

// run is the committer: it writes groups, and compacts the log. It ends when the journal is closed and nothing is queued.
func (j *Journal) run() {
	defer close(j.stopped)
	for range j.wake {
		for more := true; more; {
			j.committing.Lock()
			g, closing := j.takeGroup(true)
			if g != nil {
				j.process(g)
			}
			more = j.compact() || g != nil
			j.committing.Unlock()
			if g == nil && closing {
				return
			}
		}
	}
}

// Sync is Commit that returns the outcome. It writes the group itself, so that no other goroutine has to wake up. It must
// not be called from a done.
func (j *Journal) Sync(changes []RecordChange) error { return j.sync(changes, false) }

func (j *Journal) sync(changes []RecordChange, reserved bool) (err error) {
	written := false // by another holder of turn
	taken, _ := j.enqueue(changes, groupCommit{done: func(outcome error) { err, written = outcome, true }, reserved: reserved})
	if !taken {
		return ErrClosed
	}
	j.committing.Lock()
	defer j.committing.Unlock()
	if !written {
		g, _ := j.takeGroup(false)
		j.process(g)
	}
	if j.compaction != nil || j.wasteful() {
		j.wakeUp()
	}
	return err
}

// takeGroup takes the queued commits, if any is urgent. The callers that the last group has answered are about to commit
// again: giving way to them makes one group of all callers, not two of half of them.
func (j *Journal) takeGroup(giveWay bool) (g *commitGroup, closing bool) {
	for seen := -1; ; {
		j.mu.Lock()
		g = j.filling
		if len(g.calls) == 0 || !g.urgent && !j.lazyDelayOver && !j.closing {
			closing = j.closing
			j.mu.Unlock()
			return nil, closing
		}
		if !giveWay || len(g.calls) == seen || len(g.buf) > maxKeptGroup {
			j.filling, j.written, j.lazyDelayOver = j.written, nil, false
			j.writing = len(g.buf) - wal.HeadSize
			j.mu.Unlock()
			return g, false
		}
		seen = len(g.calls)
		j.mu.Unlock()
		runtime.Gosched()
	}
}

const retryDelay = time.Second // of changes without a done, after a failure

// process makes a group durable and gives the outcome. The caller holds committing.
func (j *Journal) process(g *commitGroup) {
	began := time.Now()
	err := j.commit(g)
	if datadir.IsFull(err) && j.opts.Shared == nil {
		j.commitReserved(g)
	}
	if j.opts.Committed != nil && !g.empty() {
		j.opts.Committed(time.Since(began), len(g.ops), err)
	}
	if err != nil {
		for _, c := range g.calls {
			if !c.stored {
				j.stats.failed.Add(1)
			}
		}
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
	j.stats.full.Store(datadir.IsFull(err) || j.stats.full.Load() && g.empty())
	for _, c := range g.calls {
		switch {
		case c.done == nil:
		case c.stored:
			c.done(nil)
		default:
			c.done(err)
		}
	}
	j.mu.Lock()
	if err != nil && !j.closing {
		j.filling.requeue(g, &j.index)
		j.lazy.Reset(retryDelay)
	}
	g.reset()
	j.written, j.writing = g, 0
	j.mu.Unlock()
}

// commit makes a group durable, and updates the index.
func (j *Journal) commit(g *commitGroup) error {
	if g.empty() {
		return nil
	}
	if err := j.shared.add(g); err != nil {
		return err
	}
	body := g.buf[wal.HeadSize:]
	end, err := j.order.Append(context.Background(), j.end, body)
	if err != nil {
		return j.shared.failed(err)
	}
	j.end = end
	j.note(g, wal.StartOf(end, len(body)))
	return nil
}

// note updates the index by a group that is stored.
func (j *Journal) note(g *commitGroup, at wal.Position) {
	j.places.Lock()
	defer j.places.Unlock()
	for _, m := range g.ops {
		j.account(m.id, recordPlace{uint32(at.Segment), uint32(at.At) + m.at, m.size}, m.put)
	}
}

// commitReserved stores those commits of a group that the reserve is for: the ones that only delete, or free twice what they take, the ones
// that nobody waits for, which are small, and those of SyncReserved. Unless there is one of the last, or they free more than they take, they
// leave of the reserve what compaction needs next.
func (j *Journal) commitReserved(g *commitGroup) {
	spared := newCommitGroup()
	var freed int64
	needed := false
	begin := 0
	for i := range g.calls {
		c := &g.calls[i]
		ops := g.ops[begin:c.ops]
		begin = c.ops
		room, takes := j.index.room(ops)
		if len(ops) == 0 || c.done != nil && !c.reserved && room < 2*takes && slices.ContainsFunc(ops, func(m groupOperation) bool { return m.put }) {
			continue
		}
		c.stored = true
		freed += room
		needed = needed || c.reserved
		for _, m := range ops {
			spared.copyOp(m, g.buf)
		}
	}
	if spared.empty() {
		return
	}
	var keep int64
	if freed < int64(len(spared.buf)) && !needed {
		oldest, _ := j.log.Segments()
		keep = j.live[oldest] + wal.ReserveSlack
	}
	if err := j.commitKeeping(spared, keep); err != nil {
		for i := range g.calls {
			g.calls[i].stored = false
		}
	}
}

// room is how many bytes operations free, and how many they take.
func (x *recordIndex) room(ops []groupOperation) (freed, takes int64) {
	for _, m := range ops {
		old, _ := x.get(m.id)
		freed, takes = freed+int64(old.size), takes+int64(m.size)
	}
	return freed, takes
}

// commitKeeping is commit that takes room of the reserve on a full disk, and leaves so much of that.
func (j *Journal) commitKeeping(g *commitGroup, keep int64) error {
	at, err := j.log.AppendReserved(g.buf, keep)
	if err != nil {
		return err
	}
	j.note(g, at)
	_, j.end, err = wal.NewOrdered(j.log).Bounds(context.Background())
	return err
}

// account updates the index, and how many bytes of each segment are live.
func (j *Journal) account(id uint64, p recordPlace, put bool) {
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

// compaction copies the live records of the oldest segment to the log's end, some of them between any two groups.
type compaction struct {
	segment *wal.Reader
	body    []byte       // what is left of the frame that was read last
	from    wal.Position // where body begins
}

const (
	compactBytes  = 256 << 10 // read between two groups
	spareSegments = 2         // of dead bytes, that are not worth compacting
)

// compact continues compaction, if the log is too long for what is live. It reports whether there may be more to do. After
// an error it waits for a commit to succeed, unless the disk is full, which it may make room on; after damage it ends for good, and
// the log only grows.
func (j *Journal) compact() bool {
	if j.failing && !j.stats.full.Load() || j.damage.Load() != nil || j.compaction == nil && !j.wasteful() {
		return false
	}
	err := j.compactOldest()
	if err == nil {
		j.unremoved = false
		return true
	}
	j.endCompaction() // from the beginning, with the next group
	unread, unremoved := (*unreadableError)(nil), (*unremovableError)(nil)
	switch {
	case errors.As(err, &unread):
		_ = j.recordDamage(unread)
	case errors.As(err, &unremoved):
		if !j.unremoved {
			j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": a file that isn't needed can't be removed; trying again later")
		}
		j.unremoved = true
	default:
		if !j.failing {
			j.opts.Log.Warn().Err(err).Msg(j.opts.Name + ": not compacted")
		}
		j.failing = true
		j.stats.full.Store(datadir.IsFull(err))
	}
	return false
}

// unreadableError is the error for a segment that can't be read and has records that are needed.
type unreadableError struct{ error }

// unremovableError is the error for a segment that is not needed and can't be removed.
type unremovableError struct{ error }

// isTemporary reports whether an error of reading may go away.
func isTemporary(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func (j *Journal) endCompaction() {
	if j.compaction != nil {
		j.compaction.segment.Close()
		j.compaction = nil
	}
}

// wasteful reports whether the log is too long for what is live. On a full disk any length is, if compaction frees a quarter of
// what it copies, and if the reserve has room for that.
func (j *Journal) wasteful() bool {
	if j.stats.full.Load() {
		oldest, _ := j.log.Segments()
		live := j.stats.live.Load()
		return j.log.Size()-live > max(live/4, int64(j.opts.Segment)/16) &&
			(j.live[oldest] == 0 || j.live[oldest]+wal.ReserveSlack <= j.log.Reserved())
	}
	return j.log.Count() > 1 && j.log.Size() > 2*j.stats.live.Load()+spareSegments*int64(j.opts.Segment)
}

func (j *Journal) compactOldest() error {
	oldest, newest := j.log.Segments()
	if oldest == newest {
		if err := j.log.Cut(); err != nil {
			return err
		}
	}
	if j.compaction == nil {
		if base := j.log.Base(); oldest < base { // it could not be removed
			return j.remove(base)
		}
		if j.live[oldest] == 0 {
			return j.drop(newCommitGroup(), oldest)
		}
		r, err := j.log.Read(oldest, nil)
		if err != nil && !isTemporary(err) {
			return &unreadableError{err}
		} else if err != nil {
			return err
		}
		j.compaction = &compaction{segment: r}
	}
	g := newCommitGroup()
	more, err := j.copyLive(g)
	if err != nil {
		return &unreadableError{err}
	}
	j.stats.compacted.Add(int64(len(g.buf)))
	if more {
		return j.commitCopies(g)
	}
	return j.drop(g, oldest)
}

// commitCopies stores what compaction has copied, if there is any.
func (j *Journal) commitCopies(g *commitGroup) error {
	if g.empty() {
		return nil
	}
	return j.commitKeeping(g, 0)
}

// copyLive puts the next few live records of the oldest segment into a group. It reports whether there are more.
func (j *Journal) copyLive(g *commitGroup) (more bool, err error) {
	c := j.compaction
	for looked := 0; looked < compactBytes; {
		if len(c.body) == 0 {
			if c.body, c.from, err = c.segment.Next(); err != nil {
				return false, ignoreError(io.EOF, err)
			}
			c.from.At += wal.HeadSize
			continue
		}
		op, err := nextOp(c.body)
		if err != nil {
			return false, j.log.Damaged(c.from, err)
		}
		if op.kind == opPut && j.isLive(op.id, c.from) {
			g.add(RecordChange{op.id, op.value})
		}
		c.body, c.from.At = c.body[op.size:], c.from.At+int64(op.size)
		looked += op.size
	}
	return true, nil
}

func ignoreError(what, err error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// isLive reports whether the operation at a place is a record's last one.
func (j *Journal) isLive(id uint64, at wal.Position) bool {
	p, ok := j.index.get(id)
	return ok && uint64(p.segment) == at.Segment && int64(p.at) == at.At
}

// drop commits the last copies together with the operation that retires the oldest segment, and removes that.
func (j *Journal) drop(g *commitGroup, oldest uint64) error {
	g.addBase(oldest + 1)
	if err := j.commitCopies(g); err != nil {
		return err
	}
	j.endCompaction()
	j.places.Lock()
	delete(j.live, oldest)
	j.places.Unlock()
	return j.remove(oldest + 1)
}

// remove removes the segments before base, the oldest first.
func (j *Journal) remove(base uint64) error {
	if err := j.log.Retire(base); err != nil {
		return &unremovableError{err}
	}
	return nil
}
