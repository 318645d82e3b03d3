package bolt

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

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
		return &formatError{v}
	}
	for _, name := range [][]byte{bucketMeta, bucketKinds, bucketReplicas, bucketReported} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("no %s in it", name)
		}
	}
	return nil
}

// formatError is the error for a file of another format. It is not damaged.
type formatError struct{ format uint64 }

// Error says the formats.
func (e *formatError) Error() string {
	return fmt.Sprintf("its format is %d, this program reads %d", e.format, formatVersion)
}

// describeFailure is an error of a file that could not be read, with what to do.
func describeFailure(path string, err error) error {
	if errors.As(err, new(*formatError)) {
		return fmt.Errorf("%s is of another version of this program: %w. To move, run the version that wrote it, save its objects with edgebus export, "+
			"and stop it; give its authority to an empty data directory with cloudhub take-authority %s, start this version there, and edgebus apply the objects",
			path, err, filepath.Dir(path))
	}
	return storeFile(path).Damaged(err)
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
func (r *reader) body(p boltfile.Location, key, record []byte) ([]byte, error) {
	body, err := p.Open(key, record)
	if err != nil {
		return nil, errRecord
	}
	r.found.Add(record)
	return body, nil
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

func (r *reader) entry(p boltfile.Location, key, data []byte) (*objectVersion, error) {
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
func (r *reader) status(e *objectVersion, p boltfile.Location, key, status []byte) error {
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
