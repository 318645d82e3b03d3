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
	format   = "edgebus-core/3"

	// Whoever looks into the file with other tools has it for a moment.
	lockTime = time.Second
	// Pages are filled so far: values are replaced by others of about their size.
	fillPercent = 0.8
)

var (
	bucketMeta = []byte("meta")
	keyFormat  = []byte("format")
	keySegment = []byte("segment")
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
	return err
}

func initialise(tx *bbolt.Tx) error {
	for _, name := range buckets[1:] {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket(bucketMeta)
	return errors.Join(err, meta.Put(keyFormat, []byte(format)), putPosition(tx, 0))
}

// claim is for one node: what is here would be published under another one's name.
func (s *Store) claim() error {
	node, whose := s.opts.Node, ""
	err := s.inDB(func(tx *bbolt.Tx) error {
		whose = string(tx.Bucket(bucketMeta).Get(keyNode))
		return nil
	})
	switch {
	case err != nil || node == "" || whose == node || whose == "" && s.opts.ReadOnly:
		return err
	case whose != "":
		return fmt.Errorf("%s has the data of the node %s, and node.name is %s: set node.name to %s, or give %s another data.dir; "+
			"to have it begin anew here, without what is in it, move the directory away", s.opts.Dir, whose, node, whose, node)
	}
	err = s.file().Safely(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyNode, []byte(node)) })
	})
	if err != nil { // a core starts on a full disk, too
		s.opts.Log.Warn().Err(err).Msg("whose data this is was not noted: that is done at the next start")
	}
	return nil
}

func putPosition(tx *bbolt.Tx, segment uint64) error {
	return tx.Bucket(bucketMeta).Put(keySegment, strconv.AppendUint(nil, segment, 10))
}

// position is the last segment that is in the database.
func (s *Store) position() (segment uint64, err error) {
	err = s.inDB(func(tx *bbolt.Tx) error {
		segment, err = positionIn(tx)
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

func positionIn(tx *bbolt.Tx) (uint64, error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return 0, errors.New("no store of a node's tree")
	}
	if found := meta.Get(keyFormat); string(found) != format {
		return 0, fmt.Errorf("its format is %q; this program reads %q", found, format)
	}
	for _, name := range buckets[1:] {
		if tx.Bucket(name) == nil {
			return 0, fmt.Errorf("it has no bucket %q", name)
		}
	}
	return strconv.ParseUint(string(meta.Get(keySegment)), 10, 64)
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
