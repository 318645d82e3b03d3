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
	"os"
	"sync"
	"sync/atomic"
	"time"

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
