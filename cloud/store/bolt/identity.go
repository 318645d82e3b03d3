package bolt

import (
	"crypto/rand"
	"encoding/binary"
)

// Identity tells this store from all others. It is drawn when the file is made, and copies and
// backups have it. older says that the file had been in use before it had one. Of a file that is
// only looked at it may be missing: 0.
func (s *Store) Identity() (id uint32, older bool) { return s.identity, s.older }

// newIdentity draws one.
func newIdentity() (id uint32) {
	for id == 0 {
		b := make([]byte, 4)
		_, _ = rand.Read(b) // crypto/rand never fails
		id = binary.BigEndian.Uint32(b)
	}
	return id
}
