//go:build !unix

package journal

import "os"

// lockFile relies on the stores beside the journal, which lock theirs.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}
