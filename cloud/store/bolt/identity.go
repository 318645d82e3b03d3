package bolt

import (
	"crypto/rand"
	"encoding/binary"
)

// Identity tells this store from all others. It is drawn when the file is made, and copies and
// backups have it.
func (s *Store) Identity() uint32 { return s.identity }

// newIdentity draws one.
func newIdentity() (id uint32) {
	for id == 0 {
		b := make([]byte, 4)
		_, _ = rand.Read(b) // crypto/rand never fails
		id = binary.BigEndian.Uint32(b)
	}
	return id
}
