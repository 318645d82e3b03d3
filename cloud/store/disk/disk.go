// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
)

// Options say where the records are and how much is kept. Zero fields take the defaults.
type Options struct {
	// Journal keeps the records, among those of others. Nil: the store opens one of its own in the directory Path.
	Journal *journal.Journal
	Path    string
	// Tombstones is how many deleted objects of each kind are remembered, in memory, for watches that go on from a
	// revision. A watch from an older revision fails with Gone.
	Tombstones int
	// WatchBuffer is how many changed objects wait for one watcher before it is made
	// to catch up from the index. MaxWatchers bounds the watchers.
	WatchBuffer int
	MaxWatchers int
	// MaxObject bounds the bytes of one record.
	MaxObject int
	// MaxPinned bounds the bytes of replaced versions that lists which are read page by page keep in memory. A list that goes on from an
	// earlier revision fails with Gone.
	MaxPinned uint64
	// ReadOnly opens a journal that no process uses for reading only: nothing is made or changed.
	ReadOnly bool

	// Committed is called after each commit with its duration, the number of its writes, and the error if it failed. It must not
	// block, and may be nil.
	Committed func(took time.Duration, writes int, err error)

	Log zerolog.Logger
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Path == "" && o.Journal == nil {
		return errors.New("disk: Options.Path or Options.Journal is required")
	}
	o.setLimits()
	return nil
}

func (o *Options) setLimits() {
	o.Tombstones = cmp.Or(o.Tombstones, 4096)
	o.WatchBuffer = cmp.Or(o.WatchBuffer, 512)
	o.MaxWatchers = cmp.Or(o.MaxWatchers, 16384)
	o.MaxObject = cmp.Or(o.MaxObject, 4<<20)
	o.MaxPinned = cmp.Or(o.MaxPinned, 256<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
}

// view is what readers and watchers have of objects: the newest snapshot, those that are read page by page, and streams.
type view struct {
	opts Options
	snap atomic.Pointer[snapshot] // stored with mu held, so that streams see it whole

	mu      sync.Mutex
	streams map[store.Key]map[*stream]struct{} // by what they watch
	watches int
	ended   bool

	pinMu sync.Mutex
	pins  []pinnedSnapshot
}

// Store is a store.Store in a journal.
type Store struct {
	view
	journal journal.Table
	own     *journal.Journal // to be closed with the store; nil: the journal is another's

	identity uint32
	opened   uint64      // the revision at which it was opened
	derives  atomic.Bool // there are derived statuses; set before they are written

	requests chan *request
	closing  chan struct{} // closed by Close: no new requests
	done     chan struct{} // closed when the committer has ended
	closed   sync.Once

	committerState                                    // of the committer only
	commit         func([]journal.RecordChange) error // tests make it fail
}

// committerState is what the committer knows besides the index of objects.
type committerState struct {
	failing     bool   // the last commit failed
	reserved    uint64 // the revision that is on disk
	ids         idSource
	lastDeletes map[string]recordID
	nodes       nodeTable
	reported    map[string][]store.ReplicaItem // what was read of nodes' items when the store was opened, and nobody has asked for
}

var _ store.Store = (*Store)(nil)

// Open reads the records into the index. A journal without any gets the first one.
func Open(opts Options) (*Store, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		view:     view{opts: opts, streams: make(map[store.Key]map[*stream]struct{})},
		requests: make(chan *request, maxBatch),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
	}
	from := opts.Journal
	if from == nil {
		var err error
		if from, err = journal.Open(journal.Options{Dir: opts.Path, Name: "the store", Keeps: "the objects", Log: opts.Log, ReadOnly: opts.ReadOnly}); err != nil {
			return nil, err
		}
		s.own = from
	}
	s.journal = from.Table(objectsTable)
	s.commit = s.journal.Sync
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.closeOwn())
	}
	if opts.ReadOnly {
		s.closed.Do(func() { close(s.closing) }) // to writers
		close(s.done)
		return s, nil
	}
	go s.run()
	return s, nil
}

// load reads all records.
func (s *Store) load() error {
	l, found, err := loadRecords(s.journal)
	var other *formatError
	if errors.As(err, &other) {
		return fmt.Errorf("%s is of another version of this program: %w. %s", s.journal.Dir(), other, HowToMove(filepath.Dir(s.journal.Dir())))
	} else if err != nil {
		return err
	}
	if !found && s.opts.ReadOnly {
		return fmt.Errorf("%s has no objects: %w", s.journal.Dir(), fs.ErrNotExist)
	}
	if !found {
		l.state.identity, l.ids.last = newIdentity(), stateRecord
		if err := s.commit([]journal.RecordChange{{ID: journalID(stateRecord), Value: l.state.encode()}}); err != nil {
			return err
		}
	}
	s.identity, s.opened = l.state.identity, l.state.rev
	s.committerState = committerState{reserved: l.state.rev, ids: l.ids, lastDeletes: l.lastDeletes, nodes: l.nodes, reported: l.reported}
	snap := l.snap // by itself: a pointer into l would keep all that was read in memory, until there is another snapshot
	s.snap.Store(&snap)
	return nil
}

// HowToMove is what to do with a data directory of another format.
func HowToMove(dir string) string {
	return fmt.Sprintf("To move, run the version that wrote it, save its objects with edgebus export, and stop it; give its authority to an empty data directory with "+
		"cloudhub take-authority %s, start this version there, and edgebus apply the objects", dir)
}

// newIdentity draws an identity.
func newIdentity() (id uint32) {
	for id == 0 {
		b := make([]byte, 4)
		_, _ = rand.Read(b) // crypto/rand never fails
		id = binary.BigEndian.Uint32(b)
	}
	return id
}

func (s *Store) closeOwn() error {
	if s.own == nil {
		return nil
	}
	return s.own.Close()
}

// Close commits what waits, and ends all streams.
func (s *Store) Close() error {
	if s.opts.ReadOnly {
		s.endStreams()
		return s.closeOwn()
	}
	var err error
	s.closed.Do(func() {
		close(s.closing)
		<-s.done
		s.endStreams()
		err = s.closeOwn()
	})
	return err
}

// Get returns an object as it is now.
func (s *view) Get(ctx context.Context, key store.Key) (store.Object, error) {
	if err := ctx.Err(); err != nil {
		return store.Object{}, err
	}
	e := s.snap.Load().table(key.Kind).get(key.Namespace, key.Name)
	if e == nil {
		return store.Object{}, store.NotFound(key)
	}
	return e.object(key.Kind), nil
}

// Identity is a random number that identifies this store. It is drawn when the store is made; copies and backups have the same.
func (s *Store) Identity() uint32 { return s.identity }

// Counts are the objects of each kind, and the newest revision.
func (s *Store) Counts() (objects map[string]int, rev uint64) {
	snap := s.snap.Load()
	objects = make(map[string]int)
	for kind, t := range snap.tables {
		objects[kind] = t.n
	}
	return objects, snap.rev
}

// Changed is the newest revision, that of the newest change of a kind, and how many objects of that there are.
func (s *Store) Changed(kind string) (rev, changed uint64, objects int) {
	snap := s.snap.Load()
	t := snap.table(kind)
	return snap.rev, t.changed(), t.n
}

// BecomeAnother gives the store another identity, which the next Fork stores. Nobody uses it yet.
func (s *Store) BecomeAnother() { s.identity = newIdentity() }

// Fork makes a store that was restored from a backup fit to go on, before anybody reads it:
// revisions go on above all that were given since the backup, and watches from before fail with Gone. next gives the revision to go on from.
func (s *Store) Fork(next func(rev uint64) uint64) error {
	return s.submit(context.Background(), 0, func(b *batch) error {
		b.next.rev = next(b.next.rev)
		for kind := range b.next.tables {
			t := b.edit(kind)
			t.lastDelete, t.floor = b.next.rev, b.next.rev
		}
		return nil
	})
}
