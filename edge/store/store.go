// Package store keeps a core's state on disk: both maps of the node's tree with
// their place in the link protocol, and what is in force for each property. After
// Commit returns, all of a batch outlives a power cut; if it fails, none of it does.
// It decides nothing: what to store is the twin's business.
//
// The state lives in a journal (package broker/journal): a Commit is one frame at
// the end of a log, one write and one sync. A core has all of its state in memory,
// and reads what is stored only when it starts; so the log is all there is, and is
// kept short by copying what is live out of its oldest segment.
//
// # Format
//
// The segments are in the directory [DirName] of the data directory; package journal
// says how they are framed, and what counts as damage. A record's value is
//
//	kind (1 byte), length of the key (varint), key, body
//
// and the kinds are
//
//	1  the format, "edgebus-core/2"; no key; record 1
//	2  place of the map of edge-owned keys: a link.State in CBOR; no key; record 2
//	3  place of the map of cloud-owned keys: the same; record 3
//	4  floor of the versions in force: an unsigned number in CBOR; no key; record 4
//	5  an edge-owned entry, or its tombstone, as link.AppendEntry writes it
//	6  a cloud-owned entry, likewise
//	7  what is in force for a property: an Effective in CBOR, under its desired key
//
// Records of keys have numbers from 16 on. A key keeps its record until it is deleted.
package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/link"
)

// DirName is the name of the store's directory in the core's data directory.
const DirName = "tree"

const (
	format    = "edgebus-core/2"
	oldFormat = "core.db" // a file, of versions before the first release

	segment = 4 << 20 // what is read at once at the start, and the unit that the log is shortened by
)

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
	Up, Down  link.Journal
	Effective map[string]*Effective // by key; nil: forget it
	Floor     uint64                // versions of forgotten effective values are at or below it; 0: unchanged
}

// Empty says that there is nothing that must be committed.
func (b Batch) Empty() bool {
	return !b.Up.Dirty && !b.Down.Dirty && len(b.Effective) == 0 && b.Floor == 0
}

// Snapshot is everything that is stored.
type Snapshot struct {
	Up        *link.Owner
	Down      *link.Replica
	Effective map[string]*Effective
	Floor     uint64
}

// Options are what a Store is made from. Dir and Rand are needed.
type Options struct {
	Dir  string        // the core's data directory
	Rand func() uint64 // gives the nonces of new lineages
	Log  zerolog.Logger
	// Committed is told of each commit, or of its failure: how long it took, and how many
	// records were in it. It must not block, and may be nil.
	Committed func(took time.Duration, records int, err error)
	// ReadOnly is for who only looks: nothing is made or changed.
	ReadOnly bool
}

// Store is an open store. It is used by one goroutine at a time.
type Store struct {
	opts    Options
	journal *journal.Journal

	stale   bool // which record has which key must be read first
	records [kinds]map[string]uint64
	next    uint64 // record
	batch   batch
}

// Open opens the store in the data directory, or makes it.
func Open(o Options) (*Store, error) {
	if !o.ReadOnly {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if old := filepath.Join(o.Dir, oldFormat); exists(old) {
		return nil, fmt.Errorf("%s is a store of an earlier version, which this program can't read: move it away to begin anew", old)
	}
	j, err := journal.Open(journal.Options{
		Dir: filepath.Join(o.Dir, DirName), Name: "the store of the node's tree", Keeps: "the values", Segment: segment, Log: o.Log,
		Committed: o.Committed,
		ReadOnly:  o.ReadOnly,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, journal: j, stale: true}
	if err := s.checkFormat(); err != nil {
		_ = j.Close()
		return nil, err
	}
	return s, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkFormat refuses what another version wrote, and marks what is new.
func (s *Store) checkFormat() error {
	if s.journal.Stats().Records == 0 && !s.opts.ReadOnly {
		return s.journal.Sync([]journal.Change{{ID: recordFormat, Value: appendRecord(nil, kindFormat, "", []byte(format))}})
	}
	err := s.read(func(_ uint64, kind byte, _, body []byte) error {
		switch {
		case kind != kindFormat:
			return nil
		case string(body) != format:
			return fmt.Errorf("the format is %q; this program reads %q", body, format)
		}
		return errEnough
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err == nil:
		return fmt.Errorf("%s: no store of a node's tree: it doesn't say its format", s.dir())
	}
	return err
}

func (s *Store) dir() string { return filepath.Join(s.opts.Dir, DirName) }

// Close closes the store.
func (s *Store) Close() error { return s.journal.Close() }

// Stats are the figures of the log.
func (s *Store) Stats() journal.Stats { return s.journal.Stats() }

// Commit stores a batch durably, whole or not at all.
func (s *Store) Commit(b Batch) error {
	if s.stale {
		if err := s.number(); err != nil {
			return err
		}
	}
	w := &s.batch
	defer w.reset()
	err := s.fill(w, b)
	if err == nil {
		err = s.journal.Sync(w.changes)
	}
	if err != nil {
		s.stale = true // the numbers that this batch gave and took back
		return err
	}
	return nil
}

// Check reads everything and compares it with itself: that each map is what its
// digest and counters say. For tests and tools.
func (s *Store) Check() error {
	_, err := s.Load()
	return err
}
