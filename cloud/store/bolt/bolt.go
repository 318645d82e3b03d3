package bolt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	opened   uint64      // the revision at which it was opened
	derives  atomic.Bool // there are derived statuses; set before they are written

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

	inDoubt  *batch                // used by the committer only: a batch whose commit failed and may be in the file all the same
	failing  bool                  // used by the committer only: the last commit failed
	reserved uint64                // used by the committer only: the revision that is in the file
	commit   func(*bbolt.Tx) error // tests make it fail
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
		return nil, describeFailure(opts.Path, err)
	}
	if known && snap.seq < before {
		_ = db.Close()
		return nil, fmt.Errorf("the store's file %s is older than what was acknowledged: it has the commits up to %d of %d; restore it from a backup, or remove %s to go on with what is there",
			opts.Path, snap.seq, before, confirmedPath(opts.Path))
	}
	s.identity, s.opened, s.reserved = found.identity, snap.rev, snap.rev
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

// Identity is a random number that identifies this store. It is drawn when the file is made; copies and backups have the same.
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
		return describeFailure(tx.DB().Path(), err)
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
