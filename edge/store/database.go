package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/configs/daemon/boltfile"
	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

const (
	fileName = "core.db"
	format   = "edgebus-core/1"

	// Whoever looks into the file with other tools has it for a moment.
	lockTime = time.Second
	// Pages are filled so far: values are replaced by others of about their size.
	fillPercent = 0.8
)

var (
	bucketMeta = []byte("meta")
	keyFormat  = []byte("format")
	keyState   = []byte("state")
	keyNode    = []byte("node")

	buckets = [kinds][]byte{kindState: []byte("state"), kindUp: []byte("up"), kindDown: []byte("down"), kindEffective: []byte("effective")}
)

func (s *Store) file() boltfile.File {
	return boltfile.File{
		Path:   filepath.Join(s.dir(), fileName),
		Advice: fmt.Sprintf("restore the directory %s from a backup, or move it away to begin anew without the values in it", s.dir()),
	}
}

func (s *Store) openDB() (err error) {
	s.db, err = boltfile.Open(boltfile.Options{
		File: s.file(), Make: initialise, ReadOnly: s.opts.ReadOnly, LockTimeout: lockTime, NoFreelistSync: true,
	})
	if err == nil {
		s.kept, err = datadir.Keep(s.file().Path)
	}
	return err
}

// InPlace says whether a file of the store was removed, moved or replaced since it was opened.
func (s *Store) InPlace() error {
	if err := s.kept.InPlace(); err != nil {
		return err
	}
	return s.log.InPlace()
}

func initialise(tx *bbolt.Tx) error {
	for _, name := range buckets[1:] {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket(bucketMeta)
	return errors.Join(err, meta.Put(keyFormat, []byte(format)), state{}.put(tx))
}

// claim is for one node: what is here would be published under another one's name. Until a hub has seen it,
// nobody knows it by its name, and it may get another: that is what a core without settings, started once, needs.
func (s *Store) claim() error {
	node, whose := s.opts.Node, ""
	err := s.inDB(func(tx *bbolt.Tx) error {
		whose = string(tx.Bucket(bucketMeta).Get(keyNode))
		return nil
	})
	if err != nil || node == "" || whose == node || whose == "" && s.opts.ReadOnly {
		return err
	}
	if whose != "" {
		switch linked, err := s.linked(); {
		case err != nil:
			return err
		case linked:
			return fmt.Errorf("%s has the data of the node %s, and node.name is %s: set node.name to %s, or give %s another data.dir; "+
				"to have it begin anew here, without what is in it, move the directory away", s.opts.Dir, whose, node, whose, node)
		case s.opts.ReadOnly:
			return nil
		}
		s.opts.Log.Info().Str("before", whose).Str("node", node).Msg("the node is renamed: it never had a hub")
	}
	err = s.file().Safely(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyNode, []byte(node)) })
	})
	if err != nil { // a core starts on a full disk, too
		s.opts.Log.Warn().Err(err).Msg("whose data this is was not noted: that is done at the next start")
	}
	return nil
}

// linked is whether a hub has ever seen the node: it gave it the map of what the cloud owns, or has what the node reported.
func (s *Store) linked() (yes bool, err error) {
	err = s.view(func(v *view) error {
		states, _, err := v.states()
		down, up := states[stateDown], states[stateUp]
		yes = down != nil && down.Lineage.N != 0 || up != nil && up.Acked != 0
		return err
	})
	return yes, err
}

// state is what the database says of all of itself.
type state struct {
	segment uint64 // the last one that is in it
	records boltfile.Tally
}

func (s state) put(tx *bbolt.Tx) error {
	body := s.records.Append(binary.BigEndian.AppendUint64(nil, s.segment))
	return tx.Bucket(bucketMeta).Put(keyState, sealed(nil, 0, keyState, body))
}

// position is the last segment that is in the database.
func (s *Store) position() (segment uint64, err error) {
	err = s.inDB(func(tx *bbolt.Tx) error {
		now, err := stateIn(tx)
		segment = now.segment
		return err
	})
	return segment, err
}

// inDB looks into the database; what goes wrong is its damage.
func (s *Store) inDB(look func(*bbolt.Tx) error) error {
	err := s.file().Safely(func() error { return s.db.View(look) })
	if err != nil {
		return s.file().Damaged(err)
	}
	return nil
}

// stateIn reads the state.
func stateIn(tx *bbolt.Tx) (now state, err error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return now, errors.New("no store of a node's tree")
	}
	text, body := string(meta.Get(keyFormat)), meta.Get(keyState)
	if text != format {
		return now, fmt.Errorf("its format is %q; this program reads %q", text, format)
	}
	for _, name := range buckets[1:] {
		if tx.Bucket(name) == nil {
			return now, fmt.Errorf("it has no bucket %q", name)
		}
	}
	if body, err = unsealed(0, keyState, body); err != nil || len(body) != 8+boltfile.TallySize {
		return now, fmt.Errorf("%s: %w", keyState, errSum)
	}
	return state{binary.BigEndian.Uint64(body), boltfile.ParseTally(body[8:])}, nil
}

// checkRecords says whether all records are there, and whole.
func (s *Store) checkRecords() error {
	return s.inDB(func(tx *bbolt.Tx) error {
		now, err := stateIn(tx)
		if err != nil {
			return err
		}
		found, err := countRecords(tx)
		if err != nil {
			return err
		}
		return now.records.Compare(found)
	})
}

func countRecords(tx *bbolt.Tx) (found boltfile.Tally, err error) {
	for kind := byte(kindState); kind < kinds && err == nil; kind++ {
		err = tx.Bucket(buckets[kind]).ForEach(func(key, value []byte) error {
			if _, err := unsealed(kind, key, value); err != nil {
				return fmt.Errorf("%s: key %q: %w", buckets[kind], key, err)
			}
			found.Add(value)
			return nil
		})
	}
	return found, err
}

// checkDB looks at the database's pages. No checkpoint may change them meanwhile.
func (s *Store) checkDB() error {
	err := s.file().Safely(func() error {
		tx, err := s.db.Begin(!s.opts.ReadOnly)
		if err != nil {
			return err
		}
		return errors.Join(s.file().CheckPages(s.db), tx.Rollback())
	})
	if err != nil {
		return s.file().Damaged(err)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(kind byte, key, body []byte) uint32 {
	s := crc32.Update(0, castagnoli, []byte{kind})
	return crc32.Update(crc32.Update(s, castagnoli, key), castagnoli, body)
}

// sealed is a value as the database has it. It is valid until the memory serves again.
func sealed(buf []byte, kind byte, key, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(buf[:0], sum(kind, key, body)), body...)
}

var errSum = errors.New("its checksum is wrong")

func unsealed(kind byte, key, value []byte) ([]byte, error) {
	if len(value) < 4 || binary.LittleEndian.Uint32(value) != sum(kind, key, value[4:]) {
		return nil, errSum
	}
	return value[4:], nil
}
