package boltfile

import (
	"fmt"
	"io"

	"go.etcd.io/bbolt"
)

// Snapshot is a database as it was at one moment. While it is open the file grows by what
// is written, for no page of it is used again.
type Snapshot struct {
	file File
	tx   *bbolt.Tx
}

// Snapshot begins one. It must be closed before the database is.
func (f File) Snapshot(db *bbolt.DB) (s *Snapshot, err error) {
	err = f.Safely(func() error {
		tx, err := db.Begin(false)
		s = &Snapshot{f, tx}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Path is the database's file.
func (s *Snapshot) Path() string { return s.file.Path }

// Size is how many bytes Copy writes.
func (s *Snapshot) Size() int64 { return s.tx.Size() }

// Copy writes the file as it was.
func (s *Snapshot) Copy(w io.Writer) error {
	if _, err := s.tx.WriteTo(w); err != nil {
		return fmt.Errorf("%s: %w", s.file.Path, err)
	}
	return nil
}

// Close ends it.
func (s *Snapshot) Close() error { return s.tx.Rollback() }
