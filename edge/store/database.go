package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/boltfile"
)

const (
	fileName = "core.db"
	format   = "edgebus-core/4"
	format3  = "edgebus-core/3" // had the segment alone, in decimal

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

	keySegment3 = []byte("segment")

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
	return err
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
		now, _, err := stateIn(tx)
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

// stateIn reads the state. older is for a database of format 3, which has no tally.
func stateIn(tx *bbolt.Tx) (now state, older bool, err error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return now, false, errors.New("no store of a node's tree")
	}
	text, body := string(meta.Get(keyFormat)), meta.Get(keyState)
	older = text == format3
	if text != format && !older || older && body != nil {
		return now, false, fmt.Errorf("its format is %q; this program reads %q", text, format)
	}
	for _, name := range buckets[1:] {
		if tx.Bucket(name) == nil {
			return now, false, fmt.Errorf("it has no bucket %q", name)
		}
	}
	if older {
		now.segment, err = strconv.ParseUint(string(meta.Get(keySegment3)), 10, 64)
		return now, true, err
	}
	if body, err = unsealed(0, keyState, body); err != nil || len(body) != 8+boltfile.TallySize {
		return now, false, fmt.Errorf("%s: %w", keyState, errSum)
	}
	return state{binary.BigEndian.Uint64(body), boltfile.ParseTally(body[8:])}, false, nil
}

// checkRecords says whether all records are there, and whole; a database of format 3 is brought up to date.
func (s *Store) checkRecords() error {
	older := false
	err := s.inDB(func(tx *bbolt.Tx) error {
		now, of3, err := stateIn(tx)
		if err != nil {
			return err
		}
		older = of3
		found, err := countRecords(tx)
		if err == nil && !older {
			err = now.records.Compare(found)
		}
		return err
	})
	if err != nil || !older || s.opts.ReadOnly {
		return err
	}
	err = s.file().Safely(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			now, err := upToDate(tx)
			return errors.Join(err, now.put(tx))
		})
	})
	if err != nil { // a core starts on a full disk, too
		s.opts.Log.Warn().Err(err).Msg("the database was not brought up to date: that is done by the next checkpoint")
	}
	return nil
}

// upToDate is the state in a transaction that will put it, also of a database that was of format 3.
func upToDate(tx *bbolt.Tx) (state, error) {
	now, older, err := stateIn(tx)
	if err != nil || !older {
		return now, err
	}
	if now.records, err = countRecords(tx); err != nil {
		return now, err
	}
	meta := tx.Bucket(bucketMeta)
	return now, errors.Join(meta.Delete(keySegment3), meta.Put(keyFormat, []byte(format)))
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
