// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/link"
)

// Format is the number of the store's format, which upgrades compare. See ADR 0097 for when it may rise.
const Format = 1

const (
	fileName = "core.db"
	format   = "edgebus-core/1"

	// Another tool may have the file open for a moment.
	lockTimeout = time.Second
	// How far pages are filled: values are replaced by others of about the same size.
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
		File: s.file(), Make: initialiseDatabase, ReadOnly: s.opts.ReadOnly, LockTimeout: lockTimeout, NoFreelistSync: true,
	})
	if err == nil {
		s.heldFile, err = datadir.IdentifyFile(s.file().Path)
	}
	return err
}

// InPlace returns an error if a file of the store was removed, moved or replaced since it was opened.
func (s *Store) InPlace() error {
	if err := s.heldFile.CheckInPlace(); err != nil {
		return err
	}
	return s.log.InPlace()
}

func initialiseDatabase(tx *bbolt.Tx) error {
	for _, name := range buckets[1:] {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	meta, err := tx.CreateBucket(bucketMeta)
	return errors.Join(err, meta.Put(keyFormat, []byte(format)), databaseState{}.put(tx))
}

// claim refuses the data of another node, which would be published under the wrong name, and notes the node's name. A node that has
// never been linked to a hub is renamed instead: a core that was first started without settings has a default name.
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
	err = s.file().CatchPanics(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyNode, []byte(node)) })
	})
	if err != nil { // a core must start on a full disk, too
		s.opts.Log.Warn().Err(err).Msg("the node's name could not be stored with its data: that is tried again at the next start")
	}
	return nil
}

// linked reports whether the node was ever linked to a hub: it has a map from a hub, or a hub has acknowledged its own map.
func (s *Store) linked() (yes bool, err error) {
	err = s.view(func(v *storedView) error {
		states, _, err := v.states()
		down, up := states[stateDown], states[stateUp]
		yes = down != nil && down.Lineage.N != 0 || up != nil && up.Acked != 0
		return err
	})
	return yes, err
}

// databaseState is the record of the whole database.
type databaseState struct {
	segment uint64 // the last one that is in it
	records boltfile.Tally
}

func (s databaseState) put(tx *bbolt.Tx) error {
	body := s.records.Append(binary.BigEndian.AppendUint64(nil, s.segment))
	return tx.Bucket(bucketMeta).Put(keyState, location(0).Record(keyState, body))
}

// position is the last segment that is in the database.
func (s *Store) position() (segment uint64, err error) {
	err = s.inDB(func(tx *bbolt.Tx) error {
		now, err := readState(tx)
		segment = now.segment
		return err
	})
	return segment, err
}

// inDB reads the database; an error is returned as damage of the file.
func (s *Store) inDB(look func(*bbolt.Tx) error) error {
	err := s.file().CatchPanics(func() error { return s.db.View(look) })
	if err != nil {
		return s.file().Damaged(err)
	}
	return nil
}

// readState reads the state.
func readState(tx *bbolt.Tx) (now databaseState, err error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return now, errors.New("no store of a node's tree")
	}
	text, body := string(meta.Get(keyFormat)), meta.Get(keyState)
	if text != format {
		return now, fmt.Errorf("its format is %q; this program reads %q: move the directory away, and the core begins with an empty one, into which the hub sends again what it owns", text, format)
	}
	for _, name := range buckets[1:] {
		if tx.Bucket(name) == nil {
			return now, fmt.Errorf("it has no bucket %q", name)
		}
	}
	if body, err = location(0).Open(keyState, body); err != nil || len(body) != 8+boltfile.TallySize {
		return now, fmt.Errorf("%s: %w", keyState, boltfile.ErrChecksum)
	}
	return databaseState{binary.BigEndian.Uint64(body), boltfile.ParseTally(body[8:])}, nil
}

// checkRecords says whether all records are there, and whole.
func (s *Store) checkRecords() error {
	return s.inDB(func(tx *bbolt.Tx) error {
		now, err := readState(tx)
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
			if _, err := location(kind).Open(key, value); err != nil {
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
	err := s.file().CatchPanics(func() error {
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

// location is where the records of a kind are; 0: in meta.
func location(kind byte) boltfile.Location { return boltfile.LocationOf([]byte{kind}) }

// The kinds of what is stored; see the package's description.
const (
	kindState = iota + 1
	kindUp
	kindDown
	kindEffective
	kinds // one more than the last
)

// The keys of kindState.
const (
	stateUp    = "up"
	stateDown  = "down"
	stateFloor = "floor"
	stateAhead = "ahead"
)

// The operations that a batch is in the log.
const (
	opPut = iota + 1
	opDelete
	opClear
)

var errRecord = errors.New("a record that can't be read")

// appendHead begins a record: operation, kind and key.
func appendHead(b []byte, op, kind byte, key string) []byte {
	b = binary.AppendUvarint(append(b, op, kind), uint64(len(key)))
	return append(b, key...)
}

func appendPut(b []byte, kind byte, key string, body []byte) []byte {
	b = binary.AppendUvarint(appendHead(b, opPut, kind, key), uint64(len(body)))
	return append(b, body...)
}

// record is one operation.
type record struct {
	op, kind  byte
	key, body []byte
}

// nextRecord decodes the first record of b.
func nextRecord(b []byte) (r record, rest []byte, err error) {
	if len(b) < 2 || b[0] < opPut || b[0] > opClear || b[1] == 0 || b[1] >= kinds {
		return r, nil, errRecord
	}
	r.op, r.kind = b[0], b[1]
	if r.key, rest, err = nextBytes(b[2:]); err == nil && r.op == opPut {
		r.body, rest, err = nextBytes(rest)
	}
	return r, rest, err
}

func nextBytes(b []byte) (text, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, errRecord
	}
	end := used + int(n)
	return b[used:end:end], b[end:], nil
}

// appendBatch appends a batch as a frame's body, and counts its records.
func (s *Store) appendBatch(frame []byte, b Batch) (_ []byte, records int, err error) {
	for _, key := range s.unreadable { // before the batch, which may have a new value
		frame = appendHead(frame, opDelete, kindDown, key)
	}
	if frame, err = s.appendMap(frame, b.Up, kindUp, stateUp); err != nil {
		return frame, 0, err
	}
	if frame, err = s.appendMap(frame, b.Down, kindDown, stateDown); err != nil {
		return frame, 0, err
	}
	if b.Floor != 0 {
		floor, err := cbor.Marshal(b.Floor)
		if err != nil {
			return frame, 0, err
		}
		frame = appendPut(frame, kindState, stateFloor, floor)
	}
	for key, e := range b.Effective {
		if e == nil {
			frame = appendHead(frame, opDelete, kindEffective, key)
			continue
		}
		body, err := cbor.Marshal(e)
		if err != nil {
			return frame, 0, err
		}
		frame = appendPut(frame, kindEffective, key, body)
	}
	return frame, len(b.Up.Entries) + len(b.Down.Entries) + len(b.Effective), nil
}

func (s *Store) appendMap(frame []byte, j link.JournalChanges, kind byte, state string) (_ []byte, err error) {
	if !j.Dirty {
		return frame, nil
	}
	if j.Reset {
		frame = appendHead(frame, opClear, kind, "")
	}
	for _, e := range j.Entries {
		if kind == kindDown && isSecret(e.Key) {
			if e.Value, err = s.seal(e); err != nil {
				return frame, err
			}
		}
		s.entry = link.AppendEntry(s.entry[:0], e)
		frame = appendPut(frame, kind, e.Key, s.entry)
	}
	for _, key := range j.Dropped {
		frame = appendHead(frame, opDelete, kind, key)
	}
	body, err := j.State.MarshalBinary()
	if err != nil {
		return frame, err
	}
	return appendPut(frame, kindState, state, body), nil
}

// changes is the effect of a part of the log: the last state of each key.
type changes struct {
	cleared [kinds]bool              // all earlier keys of the kind were deleted
	keys    [kinds]map[string][]byte // nil: deleted
	bytes   int
	records int
}

const keyOverhead = 96 // bytes that a key takes in memory beyond its name and value, about

// take applies the records of a frame, which it copies.
func (c *changes) take(body []byte) error {
	for len(body) > 0 {
		r, rest, err := nextRecord(body)
		if err != nil {
			return err
		}
		body = rest
		c.records++
		c.apply(r)
	}
	return nil
}

func (c *changes) apply(r record) {
	if r.op == opClear || c.keys[r.kind] == nil {
		c.keys[r.kind] = make(map[string][]byte)
	}
	if r.op == opClear {
		c.cleared[r.kind] = true
		return
	}
	keys := c.keys[r.kind]
	old, known := keys[string(r.key)]
	if !known {
		c.bytes += len(r.key) + keyOverhead
	}
	if r.op == opDelete {
		keys[string(r.key)] = nil
		return
	}
	if known && cap(old) >= len(r.body) && old != nil {
		keys[string(r.key)] = append(old[:0], r.body...)
		return
	}
	c.bytes += len(r.body)
	keys[string(r.key)] = append(make([]byte, 0, len(r.body)+growthRoom), r.body...)
}

const growthRoom = 8 // numbers grow

// Fork makes a store that was restored from a backup fit to go on. The hub and mappers may know what the
// edge wrote after the backup, so the map of edge-owned keys gets a new lineage, and every version is raised above all that were given. stamp is
// higher at each restore; see link.State.Fork. It is one commit.
func (s *Store) Fork(stamp uint32) error {
	b := Batch{Effective: make(map[string]*Effective)}
	var floor uint64
	err := s.view(func(v *storedView) error {
		states, at, err := v.states()
		if err != nil {
			return err
		}
		floor = at
		if state := states[stateUp]; state != nil {
			b.Up.Dirty, b.Up.State = true, state.Fork(s.opts.Rand, stamp)
		}
		err = v.each(kindUp, func(key string, body []byte) error {
			e, err := link.ParseEntry(key, body)
			b.Up.Entries = append(b.Up.Entries, e.Fork(stamp))
			return err
		})
		if err != nil {
			return err
		}
		return v.each(kindEffective, func(key string, body []byte) error {
			return forkEffective(b.Effective, key, body, stamp)
		})
	})
	if err != nil {
		return err
	}
	b.Floor = link.ForkVer(floor, stamp)
	return s.Commit(b)
}

func forkEffective(into map[string]*Effective, key string, body []byte, stamp uint32) error {
	e := new(Effective)
	if err := cbor.Unmarshal(body, e); err != nil {
		return err
	}
	e.Ver = link.ForkVer(e.Ver, stamp)
	if e.Override { // an edge-owned key's
		e.SourceVer = link.ForkVer(e.SourceVer, stamp)
	}
	into[key] = e
	return nil
}
