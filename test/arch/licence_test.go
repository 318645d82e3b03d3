// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each file says its licence in its first line, in the form that tools read.
func TestEachFileSaysItsLicence(t *testing.T) {
	const line = "// SPDX-License-Identifier: Apache-2.0\n\n"
	visitSources(t, func(path string, text []byte) {
		require.True(t, bytes.HasPrefix(text, []byte(line)), "%s: its first line has to be %q, and the second empty", path, line[:len(line)-2])
	})
}
