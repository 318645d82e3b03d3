// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

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

// A file of another format is put aside like one that is damaged, and the log says which format it has.
func TestAFileOfAnotherFormatIsPutAsideByName(t *testing.T) {
	dir := t.TempDir()
	c := openClocked(t, dir, 1<<30)
	for range 150 {
		c.record(hallSeries, temperatureProperty, c.now.Format("4"))
		c.pass(time.Minute)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*"+fileSuffix))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for magic, path := range map[string]string{logMagic: logs[len(logs)-1], fileMagic: files[0]} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		other := []byte(magic)
		other[formatAt]++
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(magic), other), 0o600))
		var said bytes.Buffer
		c.o.Log = zerolog.New(&said)
		c.reopen()
		require.Contains(t, said.String(), `its format is '2', this program reads '1'`)
		require.Contains(t, said.String(), filepath.Base(path))
		require.NoFileExists(t, path)
		require.FileExists(t, path+damagedSuffix)
	}
}
