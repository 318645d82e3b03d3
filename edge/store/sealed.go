// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"

	"github.com/edgebus/edgebus/topics/link"
)

// isSecret reports whether the value of a cloud-owned key is encrypted on disk: that of a Secret, and its parts.
func isSecret(key string) bool { return strings.HasPrefix(key, "secrets/") }

func (s *Store) seal(e link.Entry) ([]byte, error) {
	if s.opts.Secrets == nil {
		return nil, fmt.Errorf("%s: there is no key to encrypt it with", e.Key)
	}
	return s.opts.Secrets.Seal(e.Value, e.Key)
}

// unseal decrypts the value of an entry, or reports that it can't.
func (s *Store) unseal(e *link.Entry) bool {
	if s.opts.Secrets == nil {
		return false
	}
	plain, err := s.opts.Secrets.Open(e.Value, e.Key)
	e.Value = plain
	return err == nil
}
