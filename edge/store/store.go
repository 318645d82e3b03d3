// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

// DirName is the name of the store's directory in the core's data directory.
const DirName = "tree"

// Effective is what is in force for a property: the desired value or an
// override. Its version rises with every change, across restarts.
type Effective struct {
	Value     []byte `cbor:"1,keyasint,omitempty"`
	Ver       uint64 `cbor:"2,keyasint"`
	Override  bool   `cbor:"3,keyasint,omitempty"` // an override is in force, not the desired value
	SourceVer uint64 `cbor:"4,keyasint,omitempty"` // the version of that desired value or override
	TS        int64  `cbor:"5,keyasint,omitempty"`
	Origin    string `cbor:"6,keyasint,omitempty"`
	Until     int64  `cbor:"7,keyasint,omitempty"`
	None      bool   `cbor:"8,keyasint,omitempty"` // nothing is in force; the version is kept
}

// Batch is what is stored together.
type Batch struct {
	Up, Down  link.JournalChanges
	Effective map[string]*Effective // by key; nil: forget it
	Floor     uint64                // versions of forgotten effective values are at or below it; 0: unchanged
	// MayWait are the keys, of Up and Effective, whose change may be lost in a crash if an earlier one was stored since the last flush; see
	// heldChanges. Those with false may not, and what waits of their Devices is stored with the batch, also if they are as they were.
	MayWait map[string]bool
	// Flush stores what waits.
	Flush bool
}

// Empty reports whether there are no changes.
func (b Batch) Empty() bool {
	return !b.Up.Dirty && !b.Down.Dirty && len(b.Effective) == 0 && b.Floor == 0 && !b.Flush
}

// Snapshot is everything that is stored.
type Snapshot struct {
	Up        *link.Owner
	Down      *link.Replica
	Effective map[string]*Effective
	Floor     uint64
	// Secrets is how many values of Secrets are stored, and Unreadable how many of these can't be decrypted and are not in Down.
	Secrets, Unreadable int
	// Lost is how many versions of a key a process that was killed may have given that are not stored: changes that were waiting are lost. 0:
	// none is.
	Lost uint64
}

// Options are what a Store is made from. Dir and Rand are needed.
type Options struct {
	Dir  string        // the core's data directory
	Rand func() uint64 // gives the nonces of new lineages
	Log  zerolog.Logger
	// Committed is called after each commit, Checkpointed after each transaction of a checkpoint, with the duration, the number of
	// records, and the error if it failed. They must not block, and may be nil.
	Committed, Checkpointed func(took time.Duration, records int, err error)
	// Node is the node's name. Data of another node is refused, since keys don't contain the node's name, unless that node has
	// never been linked to a hub. Data without a name gets this one. Empty: any data is accepted.
	Node string
	// ReadOnly opens the store for reading only: nothing is made or changed.
	ReadOnly bool
	// Secrets encrypts the values of Secrets. Nil: there is no key, so those that are stored can't be read, and none are stored.
	Secrets Sealer

	wrap func(*os.File) wal.File // stands between the log and its files in tests
	sizes
}

// Sealer encrypts values. An encrypted one opens only with the same about.
type Sealer interface {
	Seal(plain []byte, about string) ([]byte, error)
	Open(sealed []byte, about string) ([]byte, error)
}

// sizes are what tests make smaller.
type sizes struct {
	segment int64 // bytes after which a segment of the log is closed
	slack   int64 // bytes that the log may be longer than the database
	chunk   int   // records in one transaction of a checkpoint
}

func (o *Options) setDefaults() {
	ignore := func(time.Duration, int, error) {}
	if o.Committed == nil {
		o.Committed = ignore
	}
	if o.Checkpointed == nil {
		o.Checkpointed = ignore
	}
	if o.sizes == (sizes{}) {
		o.sizes = sizes{segment: 4 << 20, slack: 16 << 20, chunk: 1000}
	}
}

// Store is an open store. It is used by one goroutine at a time.
type Store struct {
	opts     Options
	log      *wal.Log
	db       *bbolt.DB
	heldFile datadir.FileIdentity // the database

	trim       sync.Mutex // held while the log's segments are read, and while they are retired
	checkpoint *checkpointer
	held       heldChanges

	failed       int           // bytes of the last commit, if that could not be stored
	frame, entry []byte        // reused memory
	unreadable   []string      // keys of Secrets that the last Load could not decrypt
	commits      atomic.Uint64 // since the start
}

// Open opens the store in the data directory, or makes it.
func Open(o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{opts: o, held: newHeldChanges()}
	log, err := wal.Open(wal.Options{
		Dir: s.dir(), Name: "the store of the node's tree", Keeps: "the values", Segment: int(o.segment),
		Log: o.Log, ReadOnly: o.ReadOnly, Wrap: o.wrap,
	})
	if err != nil {
		return nil, err
	}
	s.log = log
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.checkpoint = newCheckpointer(s)
	return s, nil
}

func (s *Store) dir() string { return filepath.Join(s.opts.Dir, DirName) }

// open opens the database and the log behind it. The log is made first, so if there is a database there is a log.
func (s *Store) open() error {
	if !fileExists(s.file().Path) {
		return s.make()
	}
	if err := s.openDB(); err != nil {
		return err
	}
	if err := s.checkRecords(); err != nil {
		return err
	}
	position, err := s.position()
	if err != nil {
		return err
	}
	if err := s.log.Scan(position+1, checkFrame); err != nil {
		return err
	}
	if err := s.claim(); err != nil {
		return err
	}
	return s.log.Begin(position + 1)
}

// make makes a new store, or finishes doing so after a crash.
func (s *Store) make() error {
	missing := fmt.Errorf("%s is missing; restore the directory %s from a backup, or move it away to begin anew without the values in it",
		s.file().Path, s.dir())
	if s.opts.ReadOnly {
		return missing
	}
	err := s.log.Scan(0, func(wal.Position, []byte) error { return missing })
	if _, newest := s.log.Segments(); newest > 1 || errors.Is(err, missing) {
		return missing
	}
	if err == nil {
		err = s.log.Begin(0)
	}
	if err != nil {
		return err
	}
	if err := s.openDB(); err != nil {
		return err
	}
	return s.claim()
}

func checkFrame(_ wal.Position, body []byte) (err error) {
	for len(body) > 0 && err == nil {
		_, body, err = nextRecord(body)
	}
	return err
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Close stores what waits, interrupts a running checkpoint, makes a last one that takes about a second at most, and closes the files.
func (s *Store) Close() error {
	var err error
	if s.Waiting() {
		err = s.Commit(Batch{Flush: true})
	}
	s.checkpoint.close()
	return errors.Join(err, s.closeFiles())
}

func (s *Store) closeFiles() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.log.Close())
}

const maxKeptFrame = 1 << 20 // the memory of a longer frame is not reused

// Commit stores a batch, whole or not at all: durably, but for what may wait and does.
func (s *Store) Commit(b Batch) error {
	began := time.Now()
	p := s.held.split(b)
	due := s.held.due(p)
	frame := s.held.appendDue(append(s.frame[:0], make([]byte, wal.HeadSize)...), p, due)
	frame, records, err := s.appendBatch(frame, p.now)
	if s.frame = frame; cap(frame) > maxKeptFrame {
		s.frame = nil
	}
	if err != nil {
		return err
	}
	if len(frame) > wal.HeadSize {
		s.checkpoint.hold()
		_, err = s.log.Append(frame)
		s.opts.Committed(time.Since(began), records, err)
		s.failed = 0
		if err != nil {
			s.failed = len(frame)
			return err
		}
		s.unreadable = nil
		s.commits.Add(1)
	}
	s.held.wrote(p, due)
	err = s.held.hold(p)
	s.checkpoint.consider()
	return err
}

// Probe reports whether the store takes a commit of the size of the last one, which failed. Nothing is stored.
func (s *Store) Probe() error { return s.log.Probe(s.failed) }

// Stats are figures of the files, for metrics.
type Stats struct {
	LogBytes, LogSegments int64
	DatabaseBytes         int64
}

// Stats takes a snapshot.
func (s *Store) Stats() Stats {
	return Stats{LogBytes: s.log.Size(), LogSegments: s.log.Count(), DatabaseBytes: s.checkpoint.size.Load()}
}

// Check reads everything, and checks each map against its digest and counters, and the pages of the database. It is for tests and
// tools.
func (s *Store) Check() error {
	if _, err := s.Load(); err != nil {
		return err
	}
	return s.checkDB()
}

// Files are the store's files as they were at one moment: the database, and the log behind
// it. They stay as they are until Release.
type Files struct {
	Database *boltfile.Snapshot
	Log      []wal.SegmentSnapshot
	Release  func()
}

// Snapshot is the store as it is at one moment, with all that was committed. It may be called from any
// goroutine, and is released before the store is closed.
func (s *Store) Snapshot() (f Files, err error) {
	s.trim.Lock() // retired segments of the log must be in the database
	defer s.trim.Unlock()
	pieces, release, err := s.log.Snapshot(func() (err error) {
		f.Database, err = s.file().Snapshot(s.db)
		return err
	})
	if err != nil {
		return Files{}, err
	}
	f.Log = pieces
	f.Release = func() {
		release()
		_ = f.Database.Close() // closing a reader can't fail
	}
	return f, nil
}
