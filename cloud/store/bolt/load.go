package bolt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
)

// loadFile reads the whole file into a snapshot, and looks at what nodes reported.
func loadFile(db *bbolt.DB) (snap *snapshot, st storeState, err error) {
	err = storeFile(db.Path()).CatchPanics(func() error {
		return db.View(func(tx *bbolt.Tx) (err error) {
			snap, st, err = readAll(tx)
			return err
		})
	})
	return snap, st, err
}

func readAll(tx *bbolt.Tx) (*snapshot, storeState, error) {
	if err := checkFormat(tx); err != nil {
		return nil, storeState{}, err
	}
	st, err := readState(tx)
	if err != nil {
		return nil, st, err
	}
	snap := &snapshot{rev: st.rev, seq: st.seq, tables: make(map[string]*table)}
	r := reader{newest: st.rev}
	kinds := tx.Bucket(bucketKinds)
	err = kinds.ForEach(func(name, _ []byte) error {
		t, err := r.table(string(name), kinds.Bucket(name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		snap.tables[string(name)] = t
		return nil
	})
	if err == nil {
		err = replicasIn(tx).check(&r.found)
	}
	if err == nil {
		err = st.records.Compare(r.found)
	}
	return snap, st, err
}

// checkFormat says that the file is of a format that is read here, and has all of its buckets.
func checkFormat(tx *bbolt.Tx) error {
	if v := formatOf(tx); v != formatVersion {
		return fmt.Errorf("its format is %d, this program reads %d", v, formatVersion)
	}
	for _, name := range [][]byte{bucketMeta, bucketKinds, bucketReplicas, bucketReported} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("no %s in it", name)
		}
	}
	return nil
}

func formatOf(tx *bbolt.Tx) uint64 {
	if meta := tx.Bucket(bucketMeta); meta != nil {
		return decodeNumber(meta.Get(keyVersion))
	}
	return formatVersion
}

// reader reads objects, and counts the records.
type reader struct {
	newest uint64 // revision
	found  boltfile.Tally
}

// body is what is in a record.
func (r *reader) body(p location, key, record []byte) ([]byte, error) {
	body, err := p.open(key, record)
	if err == nil {
		r.found.Add(record)
	}
	return body, err
}

func (r *reader) table(name string, kind *bbolt.Bucket) (*table, error) {
	if kind == nil {
		return nil, errors.New("not a bucket")
	}
	data, status := kind.Bucket(bucketData), kind.Bucket(bucketStatus)
	if data == nil || status == nil {
		return nil, errors.New("a bucket is missing")
	}
	t := new(table)
	var err error
	if t.lastDelete, err = r.lastDelete(name, kind); err != nil {
		return nil, err
	}
	t.floor = t.lastDelete
	inData, inStatus := locationIn(name, bucketData), locationIn(name, bucketStatus)
	err = data.ForEach(func(k, v []byte) error {
		e, err := r.entry(inData, k, v)
		if err == nil {
			err = r.status(e, inStatus, k, status.Get(k))
		}
		if err != nil {
			return err
		}
		if e.rev > r.newest {
			return fmt.Errorf("%q has a revision beyond the newest", k)
		}
		t.set(e)
		t.log = append(t.log, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(t.log, func(a, b *objectVersion) int { return cmp.Compare(a.rev, b.rev) })
	t.log = slices.Clip(t.log)
	return t, nil
}

// lastDelete is the revision of a kind's newest deletion.
func (r *reader) lastDelete(kind string, b *bbolt.Bucket) (uint64, error) {
	record := b.Get(keyLastDelete)
	if record == nil {
		return 0, nil
	}
	body, err := r.body(locationIn(kind, nil), keyLastDelete, record)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", keyLastDelete, err)
	}
	return decodeNumber(body), nil
}

func (r *reader) entry(p location, key, data []byte) (*objectVersion, error) {
	e := new(objectVersion)
	var err error
	if e.namespace, e.name, err = splitKey(key); err != nil {
		return nil, err
	}
	body, err := r.body(p, key, data)
	if err == nil {
		e.created, e.rev, body, err = decodeRecord(body)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", key, err)
	}
	e.data = bytes.Clone(body)
	return e, nil
}

// status reads the other record of an object, if there is one.
func (r *reader) status(e *objectVersion, p location, key, status []byte) error {
	if status == nil {
		return nil
	}
	var rev uint64
	body, err := r.body(p, key, status)
	if err == nil {
		_, rev, body, err = decodeRecord(body)
	}
	if err != nil {
		return fmt.Errorf("status of %q: %w", key, err)
	}
	e.rev, e.status = max(e.rev, rev), bytes.Clone(body)
	return nil
}

// Check compares the file with the index, and each with itself. It runs between
// commits, when the two must be equal.
func (s *Store) Check() error {
	if s.opts.ReadOnly {
		return s.view(func(tx *bbolt.Tx) error { return s.checkTx(tx) })
	}
	var found error
	err := s.submit(context.Background(), 0, func(b *batch) error {
		if !b.empty() {
			return errOtherWrites
		}
		found = s.view(func(tx *bbolt.Tx) error { return s.checkTx(tx) })
		return nil
	})
	if errors.Is(err, errOtherWrites) {
		return s.Check()
	}
	return errors.Join(err, found)
}

var errOtherWrites = errors.New("other writes in the batch")

func (s *Store) checkTx(tx *bbolt.Tx) error {
	var errs []error
	if err := storeFile(s.opts.Path).CheckPages(s.db); err != nil {
		errs = append(errs, err)
	}
	onDisk, _, err := readAll(tx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	mem := s.snap.Load()
	if mem.rev != onDisk.rev || mem.seq != onDisk.seq {
		errs = append(errs, fmt.Errorf("the index is at revision %d, commit %d; the file at %d, %d", mem.rev, mem.seq, onDisk.rev, onDisk.seq))
	}
	kinds := maps.Clone(mem.tables)
	maps.Copy(kinds, onDisk.tables)
	for kind := range kinds {
		if err := compareTables(mem.table(kind), onDisk.table(kind)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		errs = append(errs, checkStatus(tx, kind))
	}
	return errors.Join(errs...)
}

// compareTables compares the index of one kind with one that was made from the file.
func compareTables(mem, disk *table) error {
	if mem.n != disk.n || mem.lastDelete != disk.lastDelete {
		return fmt.Errorf("the index has %d objects, the newest deletion at revision %d; the file %d, %d", mem.n, mem.lastDelete, disk.n, disk.lastDelete)
	}
	var errs []error
	var last *objectVersion
	seen := 0
	disk.from("", "", func(d *objectVersion) bool {
		seen++
		m := mem.get(d.namespace, d.name)
		if m == nil || m.rev != d.rev || m.created != d.created ||
			!bytes.Equal(m.data, d.data) || !bytes.Equal(m.status, d.status) {
			errs = append(errs, fmt.Errorf("%s/%s differs between index and file", d.namespace, d.name))
		}
		if last != nil && last.compare(d.namespace, d.name) >= 0 {
			errs = append(errs, fmt.Errorf("%s/%s is out of order", d.namespace, d.name))
		}
		last = d
		return true
	})
	if seen != disk.n {
		errs = append(errs, fmt.Errorf("%d objects in an index that says %d", seen, disk.n))
	}
	return errors.Join(append(errs, compareLogs(mem, disk))...)
}

func compareLogs(mem, disk *table) error {
	alive := func(t *table) []*objectVersion {
		return slices.DeleteFunc(t.since(0), func(e *objectVersion) bool { return e.deleted })
	}
	a, b := alive(mem), alive(disk)
	if len(a) != len(b) {
		return fmt.Errorf("the index knows %d changes, the file %d", len(a), len(b))
	}
	for i := range a {
		if a[i].rev != b[i].rev || a[i].compare(b[i].namespace, b[i].name) != 0 {
			return fmt.Errorf("change %d differs: %+v, %+v", i, *a[i], *b[i])
		}
		if i > 0 && a[i].rev <= a[i-1].rev {
			return fmt.Errorf("revision %d stands twice or out of order", a[i].rev)
		}
	}
	return nil
}

// checkStatus returns an error for a status record without an object.
func checkStatus(tx *bbolt.Tx, kind string) error {
	b := tx.Bucket(bucketKinds).Bucket([]byte(kind))
	if b == nil {
		return nil
	}
	data := b.Bucket(bucketData)
	return b.Bucket(bucketStatus).ForEach(func(k, _ []byte) error {
		if data.Get(k) == nil {
			return fmt.Errorf("%s: a status without an object: %q", kind, k)
		}
		return nil
	})
}

// The file:
//
//	meta      version; state → rev, seq, identity, tally
//	kinds     {kind}/  lastDelete
//	                   data/    key → created, rev, data
//	                   status/  key → created, rev, status
//	replicas  node → meta
//	reported  node NUL key → value
//
// A key is namespace NUL name. An object's revision is the higher one of its two
// records. "rev → key" is not written: it is what the data and status records say, and is put
// together when the file is opened. Earlier deletions are not known; lastDelete is the revision of the
// kind's newest deletion, and a watch from before it can't go on.
//
// Every record but the version begins with a checksum of its location (kind and bucket, for records of a kind), its key and its
// body. The tally counts all records but those in meta, and sums up their checksums.
var (
	bucketMeta     = []byte("meta")
	bucketKinds    = []byte("kinds")
	bucketReplicas = []byte("replicas")
	bucketReported = []byte("reported")

	bucketData   = []byte("data")
	bucketStatus = []byte("status")

	keyVersion    = []byte("version")
	keyState      = []byte("state")
	keyLastDelete = []byte("lastDelete")
)

const formatVersion = 1

var (
	errRecord  = errors.New("damaged record")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// location is the checksum of the names of the buckets that a record is in.
type location uint32

const topLevelLocation location = 0 // of buckets at the top level of the file

// locationIn is the location of a bucket of a kind, or of the kind's own bucket: bucket is nil.
func locationIn(kind string, bucket []byte) location {
	b := append(append(append(make([]byte, 0, len(kind)+len(bucket)+2), kind...), 0), bucket...)
	return location(crc32.Checksum(append(b, 0), castagnoli))
}

func (p location) sum(key, body []byte) uint32 {
	return crc32.Update(crc32.Update(uint32(p), castagnoli, key), castagnoli, body)
}

// seal writes the checksum into the four bytes before a body, which makes it a record.
func (p location) seal(key, body []byte) []byte {
	binary.BigEndian.PutUint32(body, p.sum(key, body[4:]))
	return body
}

// open checks a record's checksum and returns its body, which shares its memory.
func (p location) open(key, record []byte) ([]byte, error) {
	if len(record) < 4 || binary.BigEndian.Uint32(record) != p.sum(key, record[4:]) {
		return nil, errRecord
	}
	return record[4:], nil
}

// withChecksumRoom is a copy of a body with four bytes for the checksum before it.
func withChecksumRoom(body []byte) []byte {
	return append(make([]byte, 4, 4+len(body)), body...)
}

// encodeRecord writes the body of a data or status record.
func encodeRecord(created, rev uint64, value []byte) []byte {
	b := make([]byte, 4, 20+len(value))
	b = binary.BigEndian.AppendUint64(b, created)
	b = binary.BigEndian.AppendUint64(b, rev)
	return append(b, value...)
}

// decodeRecord reads one. value is a part of it.
func decodeRecord(body []byte) (created, rev uint64, value []byte, err error) {
	if len(body) < 16 {
		return 0, 0, nil, errRecord
	}
	return binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:]), body[16:], nil
}

func objectKey(namespace, name string) []byte {
	b := make([]byte, 0, len(namespace)+1+len(name))
	return append(append(append(b, namespace...), 0), name...)
}

func splitKey(b []byte) (first, second string, err error) {
	first, second, ok := strings.Cut(string(b), "\x00")
	if !ok {
		return "", "", fmt.Errorf("key %q: %w", b, errRecord)
	}
	return first, second, nil
}

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeNumber decodes a number; it is 0 if b has another length.
func decodeNumber(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
