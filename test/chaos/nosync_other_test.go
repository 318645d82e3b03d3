// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package chaos

import (
	"errors"
	"testing"
)

const syncsSkipped = "unsynced"

func noSync(t *testing.T) []string {
	t.Skip("syncs can be skipped on Linux only")
	return nil
}

func withoutSync([]string) error { return errors.New("syncs can be skipped on Linux only") }
