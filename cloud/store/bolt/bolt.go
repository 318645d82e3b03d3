// Package bolt is the hub's embedded store: one bbolt file, written by one
// goroutine that commits everything that waits in one transaction, and an index
// in memory that serves all reads.
//
// It never acknowledges a write before the file is synced, never lets a reader
// wait for a writer or a writer for a watcher, and never interprets what it keeps.
package bolt

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/cloud/store"
)

// Options say where the file is and how much is kept. Zero fields take the defaults.
type Options struct {
	// Path is the file; its directory is made when missing.
	Path string
	// LockTimeout is how long to wait for a process that has the file open.
	LockTimeout time.Duration
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
	// ReadOnly opens a file that no process uses for reading only: nothing is made or changed.
	ReadOnly bool

	// Committed is called after each transaction with its duration, the number of its writes, and the error if it failed. It must not
	// block, and may be nil.
	Committed func(took time.Duration, writes int, err error)

	Log zerolog.Logger
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Path == "" {
		return errors.New("bolt: Options.Path is required")
	}
	o.LockTimeout = cmp.Or(o.LockTimeout, lockTimeout)
	o.Tombstones = cmp.Or(o.Tombstones, 4096)
	o.WatchBuffer = cmp.Or(o.WatchBuffer, 512)
	o.MaxWatchers = cmp.Or(o.MaxWatchers, 16384)
	o.MaxObject = cmp.Or(o.MaxObject, 4<<20)
	o.MaxPinned = cmp.Or(o.MaxPinned, 256<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

const lockTimeout = time.Second

// Store is a store.Store in one file.
type Store struct {
	opts     Options
	db       *bbolt.DB
	heldFile datadir.FileIdentity

	confirmed *datadir.ConfirmedFile // written by the committer only

	snap atomic.Pointer[snapshot] // stored with mu held, so that streams see it whole

	identity uint32

	requests chan *request
	closing  chan struct{} // closed by Close: no new requests
	done     chan struct{} // closed when the committer has ended
	closed   sync.Once

	mu      sync.Mutex
	streams map[store.Key]map[*stream]struct{} // by what they watch
	watches int
	ended   bool

	pinMu sync.Mutex
	pins  []pinnedSnapshot

	inDoubt *batch                // used by the committer only: a batch whose commit failed and may be in the file all the same
	failing bool                  // used by the committer only: the last commit failed
	commit  func(*bbolt.Tx) error // tests make it fail
}

var _ store.Store = (*Store)(nil)

// Open opens or makes the file and reads it into the index.
func Open(opts Options) (*Store, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	before, known, err := readConfirmed(opts)
	if err != nil {
		return nil, err
	}
	db, err := openFile(opts)
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, db: db,
		requests: make(chan *request, maxBatch),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
		streams:  make(map[store.Key]map[*stream]struct{}),
		commit:   (*bbolt.Tx).Commit,
	}
	snap, found, err := loadFile(db)
	if err == nil {
		s.heldFile, err = datadir.IdentifyFile(opts.Path)
	}
	if err != nil {
		_ = db.Close()
		return nil, storeFile(opts.Path).Damaged(err)
	}
	if known && snap.seq < before {
		_ = db.Close()
		return nil, fmt.Errorf("the store's file %s is older than what was acknowledged: it has the commits up to %d of %d; restore it from a backup, or remove %s to go on with what is there",
			opts.Path, snap.seq, before, confirmedPath(opts.Path))
	}
	s.identity = found.identity
	s.snap.Store(snap)
	if !opts.ReadOnly {
		if s.confirmed, err = datadir.OpenConfirmed(confirmedPath(opts.Path), [2]uint64{snap.seq}); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	if opts.ReadOnly {
		s.closed.Do(func() { close(s.closing) }) // to writers
		close(s.done)
		return s, nil
	}
	go s.run()
	return s, nil
}

func confirmedPath(path string) string { return path + "." + datadir.ConfirmedSuffix }

// readConfirmed reads up to which commit the store had acknowledged. A file that is gone had acknowledged something.
func readConfirmed(opts Options) (seq uint64, known bool, err error) {
	at, known, err := datadir.ReadConfirmed(confirmedPath(opts.Path))
	if err != nil {
		opts.Log.Warn().Err(err).Msg("the record of what the store had acknowledged can't be used")
	}
	if _, err := os.Stat(opts.Path); known && errors.Is(err, fs.ErrNotExist) {
		return 0, false, fmt.Errorf("the store's file %s is missing; %s", opts.Path, storeFile(opts.Path).Advice)
	}
	return at[0], known, nil
}

// storeFile is the store's file, with what to do when it is damaged.
func storeFile(path string) boltfile.File {
	return boltfile.File{Path: path, Advice: "restore it from a backup, or move it away, and remove " + confirmedPath(path) + ", to begin anew " +
		"as another hub, which knows no devices and leaves alone what nodes have"}
}

// openFile opens the file, or makes it.
func openFile(opts Options) (*bbolt.DB, error) {
	return boltfile.Open(boltfile.Options{File: storeFile(opts.Path), Make: initialiseFile, ReadOnly: opts.ReadOnly, LockTimeout: opts.LockTimeout})
}

// Close commits what waits, ends all streams and closes the file.
func (s *Store) Close() error {
	if s.opts.ReadOnly {
		s.endStreams()
		return s.db.Close()
	}
	var err error
	s.closed.Do(func() {
		close(s.closing)
		<-s.done
		s.endStreams()
		err = errors.Join(s.db.Close(), s.confirmed.Close())
	})
	return err
}

// InPlace returns an error if the file was removed, moved or replaced since it was opened.
func (s *Store) InPlace() error { return s.heldFile.CheckInPlace() }

// Snapshot is the file as it is at one moment, with all that was acknowledged. It is
// closed before the store.
func (s *Store) Snapshot() (*boltfile.Snapshot, error) { return storeFile(s.opts.Path).Snapshot(s.db) }

// Get returns an object as it is now.
func (s *Store) Get(ctx context.Context, key store.Key) (store.Object, error) {
	if err := ctx.Err(); err != nil {
		return store.Object{}, err
	}
	e := s.snap.Load().table(key.Kind).get(key.Namespace, key.Name)
	if e == nil {
		return store.Object{}, store.NotFound(key)
	}
	return e.object(key.Kind), nil
}

// List returns a kind's objects in order, all as of one revision.
func (s *Store) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	snap, err := s.snapshotAt(kind, opts.Rev)
	if err != nil {
		return store.Page{}, err
	}
	page := snap.table(kind).page(kind, opts)
	page.Rev = snap.rev
	if page.More > 0 {
		s.pin(snap, opts.Reader)
	}
	return page, nil
}

func (t *table) page(kind string, opts store.ListOptions) (p store.Page) {
	if opts.Name != "" {
		if e := t.get(opts.Namespace, opts.Name); e != nil {
			p.Items = []store.Object{e.object(kind)}
		}
		return p
	}
	first, name := opts.Namespace, ""
	if opts.After != (store.Key{}) {
		first, name = opts.After.Namespace, opts.After.Name+"\x00" // the next name there could be
	}
	begin, end := t.rank(first, name), t.n
	if opts.Namespace != "" {
		end = t.rank(opts.Namespace+"\x00", "")
	}
	n := max(end-begin, 0)
	if opts.Limit > 0 {
		n = min(n, opts.Limit)
	}
	p.More = max(end-begin-n, 0)
	if n == 0 {
		return p
	}
	p.Items = make([]store.Object, 0, n)
	t.from(first, name, func(e *objectVersion) bool {
		p.Items = append(p.Items, e.object(kind))
		return len(p.Items) < n
	})
	return p
}

// A pin keeps a snapshot that somebody reads page by page.
type pinnedSnapshot struct {
	snap   *snapshot
	reader string
	used   time.Time
}

const (
	maxPins          = 64 // of all readers
	maxPinsPerReader = 4  // of one reader
	maxPinAge        = 5 * time.Minute
)

func (s *Store) pin(snap *snapshot, reader string) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.snap.rev == snap.rev && p.reader == reader })
	s.pins = append(s.pins, pinnedSnapshot{snap, reader, s.opts.Now()}) // the least recently used is first
	s.unpin()
}

// unpin drops snapshots that were not used for maxPinAge, and while there are too many, or they keep too much in memory, the oldest of the
// reader that has most. pinMu is held.
func (s *Store) unpin() {
	old := s.opts.Now().Add(-maxPinAge)
	s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.used.Before(old) })
	for len(s.pins) > 0 {
		owned := make(map[string]int)
		most := "" // the hub's own, which are bounded with all others only
		oldest := s.pins[0].snap
		for _, p := range s.pins {
			if owned[p.reader]++; p.reader != "" && (most == "" || owned[p.reader] > owned[most]) {
				most = p.reader
			}
			if p.snap.replaced < oldest.replaced {
				oldest = p.snap
			}
		}
		tooMuch := s.snap.Load().replaced-oldest.replaced > s.opts.MaxPinned
		switch {
		case tooMuch:
			s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.snap == oldest })
		case len(s.pins) > maxPins, most != "" && owned[most] > maxPinsPerReader:
			i := slices.IndexFunc(s.pins, func(p pinnedSnapshot) bool { return p.reader == most })
			s.pins = slices.Delete(s.pins, i, i+1)
		default:
			return
		}
	}
}

// snapshotAt is the snapshot of a revision; 0 is the newest.
func (s *Store) snapshotAt(kind string, rev uint64) (*snapshot, error) {
	now := s.snap.Load()
	if rev == 0 || rev == now.rev {
		return now, nil
	}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.unpin()
	for _, p := range s.pins {
		if p.snap.rev == rev {
			return p.snap, nil
		}
	}
	return nil, store.Gone(kind, rev, now.rev)
}

// storeState is the record of the whole file, as of its last transaction.
type storeState struct {
	rev, seq uint64
	identity uint32
	records  boltfile.Tally
}

const stateSize = 8 + 8 + 4 + boltfile.TallySize

// readState reads the state of a file that is well formed.
func readState(tx *bbolt.Tx) (s storeState, err error) {
	b, err := topLevelLocation.open(keyState, tx.Bucket(bucketMeta).Get(keyState))
	if err != nil || len(b) != stateSize {
		return s, fmt.Errorf("its %s: %w", keyState, errRecord)
	}
	s.rev, s.seq = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	s.identity = binary.BigEndian.Uint32(b[16:])
	s.records = boltfile.ParseTally(b[20:])
	if s.identity == 0 {
		return s, errNoIdentity
	}
	return s, nil
}

var errNoIdentity = fmt.Errorf("its identity is none: %w", errRecord)

func (s storeState) put(tx *bbolt.Tx) error {
	b := make([]byte, 4, 4+stateSize)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, s.rev), s.seq)
	b = binary.BigEndian.AppendUint32(b, s.identity)
	return tx.Bucket(bucketMeta).Put(keyState, topLevelLocation.seal(keyState, s.records.Append(b)))
}

func initialiseFile(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketKinds, bucketReplicas, bucketReported} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(tx.Bucket(bucketMeta).Put(keyVersion, encodeNumber(formatVersion)), storeState{identity: newIdentity()}.put(tx))
}

// Identity is a random number that identifies this store. It is drawn when the file is made; copies and backups have the same.
func (s *Store) Identity() uint32 { return s.identity }

// newIdentity draws an identity.
func newIdentity() (id uint32) {
	for id == 0 {
		b := make([]byte, 4)
		_, _ = rand.Read(b) // crypto/rand never fails
		id = binary.BigEndian.Uint32(b)
	}
	return id
}

// Counts are the objects of each kind, and the newest revision.
func (s *Store) Counts() (objects map[string]int, rev uint64) {
	snap := s.snap.Load()
	objects = make(map[string]int)
	for kind, t := range snap.tables {
		objects[kind] = t.n
	}
	return objects, snap.rev
}

// Fork makes a file that was restored from a backup fit to go on, before it is opened:
// revisions go on above all that were given since the backup, and watches from before fail with Gone. next gives the revision to go on from.
func Fork(path string, next func(rev uint64) uint64) error {
	db, err := boltfile.Open(boltfile.Options{File: storeFile(path), LockTimeout: lockTimeout})
	if err != nil {
		return err
	}
	err = storeFile(path).CatchPanics(func() error { return db.Update(func(tx *bbolt.Tx) error { return forkFile(tx, next) }) })
	return errors.Join(err, db.Close())
}

func forkFile(tx *bbolt.Tx, next func(rev uint64) uint64) error {
	if err := checkFormat(tx); err != nil {
		return storeFile(tx.DB().Path()).Damaged(err)
	}
	now, err := readState(tx)
	if err != nil {
		return storeFile(tx.DB().Path()).Damaged(err)
	}
	now.rev = next(now.rev)
	kinds := tx.Bucket(bucketKinds)
	err = kinds.ForEach(func(name, _ []byte) error {
		b := kindBucket{kinds.Bucket(name), string(name)}
		return b.putLastDelete(&now.records, now.rev)
	})
	return errors.Join(err, now.put(tx))
}
