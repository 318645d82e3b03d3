// SPDX-License-Identifier: Apache-2.0

// Package e2e runs scripts against the real programs. They are documentation that
// can't lie: README.md says how to read and write them.
package e2e

import (
	"testing"

	"github.com/edgebus/edgebus/test/harness"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	harness.Scripts(t, "testdata")
}
