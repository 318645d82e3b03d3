// SPDX-License-Identifier: Apache-2.0

package history

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// What a store or a copy notes beside its files is damaged: it begins anew, and opens.
func TestDamagedNotesBesideTheFilesKeepNothingFromOpening(t *testing.T) {
	for _, text := range []string{"", "{", "null", "\x00\x00"} {
		dir := t.TempDir()
		o := Options{Dir: dir, Log: zerolog.Nop()}
		for _, file := range []string{copyFile, "id"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		c, err := OpenCopy(o)
		require.NoError(t, err, "%q", text)
		require.NotEmpty(t, c.id)
	}
}
