// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A node may send its hub any file with the digest that it says: what no store writes is damaged, and harms nobody.
func TestAFileThatNoStoreWritesIsDamaged(t *testing.T) {
	chunk := func(d []byte, from, to int64, size uint64) []byte {
		d = binary.AppendVarint(binary.AppendVarint(append(d, byte(numberForm)), from), to)
		return append(binary.AppendUvarint(d, size), 0, 0, 0, 0)
	}
	for name, chunks := range map[string][]byte{
		"a series without chunks":         {0, 8},
		"a chunk before the file's time":  chunk([]byte{1, 8}, -1, 1, 4),
		"a chunk after the file's time":   chunk([]byte{1, 8}, 0, 1001, 4),
		"a chunk that ends before it is":  chunk([]byte{1, 8}, 10, -5, 4),
		"a chunk behind the file":         chunk([]byte{1, 8}, 0, 1, 1<<30),
		"a chunk at the end of all files": chunk(binary.AppendUvarint([]byte{1}, math.MaxInt64), 0, 1, math.MaxInt32),
	} {
		t.Run(name, func(t *testing.T) {
			d := append(appendText(appendText([]byte{1}, "hall"), "temperature"), chunks...)
			end := fileFooter{from: 0, to: 1000, directory: uint32(len(d)), checksum: checksum(d)}
			path := filepath.Join(t.TempDir(), "1"+fileSuffix)
			require.NoError(t, os.WriteFile(path, append(append([]byte(fileMagic), d...), end.bytes()...), 0o600))
			_, err := openFile(path)
			require.ErrorIs(t, err, errDamaged)
		})
	}
}

func TestAChunkWithSamplesOutsideItsTimeIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1"+fileSuffix)
	require.NoError(t, writeFile(path, false, 0, 1000, func(w *fileWriter) error {
		err := w.add(hallSeries, []sample{{t: math.MinInt64}, {t: math.MaxInt64}})
		w.end.from, w.end.to = 0, 1000
		w.entries[0].chunks[0].from, w.entries[0].chunks[0].to = 0, 1000
		return err
	}))
	r, err := openFile(path)
	require.NoError(t, err)
	defer r.Close()
	_, err = r.samples(&r.entries[0])
	require.ErrorIs(t, err, errDamaged)
}

func TestAFileOfAllTimesIsNotThinned(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	require.NoError(t, writeFile(c.path(1, fileSuffix), false, math.MinInt64, math.MaxInt64, func(w *fileWriter) error {
		return w.add(hallSeries, []sample{{t: 0}, {t: math.MaxInt64}})
	}))
	c.reopen()
	require.ErrorContains(t, c.thin(0), "the clock was wrong")
}
