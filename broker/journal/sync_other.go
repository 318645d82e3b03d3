//go:build !linux

package journal

import "os"

type synced struct{ *os.File }
