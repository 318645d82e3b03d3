package store

import (
	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/configs/daemon/boltfile"
)

// Files are the store's files as they were at one moment: the database, and the log behind
// it. They stay as they are until Release.
type Files struct {
	Database *boltfile.Snapshot
	Log      []wal.Piece
	Release  func()
}

// Snapshot is the store as it is at one moment, with all that was committed. It may be called from any
// goroutine, and is released before the store is closed.
func (s *Store) Snapshot() (f Files, err error) {
	s.trim.Lock() // the database has what is retired of the log
	defer s.trim.Unlock()
	pieces, release, err := s.log.Snapshot(func() (err error) {
		f.Database, err = s.file().Snapshot(s.db)
		return err
	})
	if err != nil {
		return Files{}, err
	}
	f.Log = pieces
	f.Release = func() {
		release()
		_ = f.Database.Close() // a reader's end can't fail
	}
	return f, nil
}
