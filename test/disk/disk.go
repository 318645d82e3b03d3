// SPDX-License-Identifier: Apache-2.0

// Package disk makes small file systems for tests that can fail as real ones do: the
// power goes and takes with it what was not synced, the disk is full, or it can
// only be read any more.
//
// It needs root and Linux, for it mounts ext4 on loop devices.
package disk

import (
	"os"
	"testing"
)

// missingTools ends a test on a machine where it can't run: in CI with a failure, for
// nobody would notice that it was skipped.
func missingTools(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
