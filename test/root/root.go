// SPDX-License-Identifier: Apache-2.0

// Package root is for tests that need root, or a feature of the kernel that only root can use: loop mounts, network
// namespaces. `make test` leaves them out, so that it passes for everybody in the same way; `make chaos` runs them.
package root

import (
	"os"
	"testing"
)

// Env is set by make targets that run these tests.
const Env = "ROOT_TESTS"

// Require skips the test unless it was asked for and the user is root. Whoever asks for it in CI has to be root.
func Require(t testing.TB) {
	t.Helper()
	switch {
	case os.Getenv(Env) == "":
		t.Skip("needs root: make chaos runs it")
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "":
		t.Fatal("needs root")
	default:
		t.Skip("needs root")
	}
}
