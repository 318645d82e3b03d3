//go:build !linux

package wal

import "os"

// Synced is a file.
type Synced struct{ *os.File }
