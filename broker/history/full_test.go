// SPDX-License-Identifier: Apache-2.0

package history

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	testdisk "github.com/edgebus/edgebus/test/disk"
)

// TestFullDiskStopsTheHistoryAndNothingElse: whatever has no room, a log's block, a new log or the file of one, values are taken and forgotten
// until there is some; then there is a gap, and all that was written is whole. The copy on such a disk takes nothing, and goes on.
func TestFullDiskStopsTheHistoryAndNothingElse(t *testing.T) {
	disk := testdisk.New(t, 16)
	c := openClocked(t, filepath.Join(disk.Dir, "node"), 4<<20)
	copied, err := OpenCopy(Options{Dir: filepath.Join(disk.Dir, "hub"), Bytes: 4 << 20, Log: zerolog.Nop(), Now: c.o.Now})
	require.NoError(t, err)
	n := 0
	minutes := func(count int) {
		for range count {
			for p := range 20 {
				n++
				c.record(SeriesKey{"d", "p" + strconv.Itoa(p)}, temperatureProperty, strconv.Itoa(n*7919%100_003))
			}
			c.record(hallSeries, temperatureProperty, strconv.Itoa(n))
			c.pass(time.Minute)
		}
	}
	var wanted WantedPart
	send := func() error {
		for {
			p, ok, err := c.NextPart(wanted, 16<<10)
			require.NoError(t, err)
			if !ok {
				return nil
			}
			if wanted, err = copied.Add(p); err != nil {
				return err
			}
		}
	}
	minutes(30)
	require.NoError(t, send())
	before := c.read(hallSeries, noonTime, c.now, 0)
	var gaps [][2]time.Time
	for round := range 3 { // the second time the hour ends meanwhile
		require.NoError(t, disk.Fill())
		from := c.now
		minutes(45)
		require.Contains(t, c.Stats().Stopped, "no space left on device", round)
		lost := c.Stats().Lost
		minutes(2)
		require.Greater(t, c.Stats().Lost, lost)
		require.NoError(t, disk.Free())
		minutes(2)
		require.Empty(t, c.Stats().Stopped)
		gaps = append(gaps, [2]time.Time{from, c.now})
		minutes(20)
		require.NoError(t, send())
	}
	require.NoError(t, disk.Fill())
	minutes(3)
	_ = send() // an error, or nothing to send: it is tried again
	require.NoError(t, disk.Free())
	minutes(3)
	require.NoError(t, send())

	for range 2 {
		after := c.read(hallSeries, noonTime, c.now, 0)
		require.Equal(t, before.Values, after.Values[:len(before.Values)])
		for _, gap := range gaps {
			unknown := false
			for i, at := range after.Times {
				unknown = unknown || after.Values[i] == nil && at >= gap[0].Add(-time.Minute).UnixMilli() && at < gap[1].UnixMilli()
			}
			require.True(t, unknown, "a gap from %s to %s", gap[0], gap[1])
		}
		require.Zero(t, c.Stats().Damaged)
		c.reopen()
	}
	q := Query{SeriesKey: hallSeries, From: noonTime.UnixMilli(), To: c.written.UnixMilli()}
	want, err := c.Read(t.Context(), q)
	require.NoError(t, err)
	got, err := copied.Read(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, want.Times[:len(want.Times)-2], got.Times[:len(want.Times)-2])
}

// A store that never had room for anything, not even for its identity, opens on the full disk, as often as it takes. With its first file it has the identity.
func TestAHistoryOpensOnADiskThatIsFull(t *testing.T) {
	disk := testdisk.New(t, 16)
	dir := filepath.Join(disk.Dir, "node")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, disk.Fill())
	c := openClocked(t, dir, 4<<20)
	c.record(hallSeries, temperatureProperty, "1")
	c.pass(time.Minute)
	require.Contains(t, c.Stats().Stopped, "no space left on device")
	c.reopen()
	_, err := OpenCopy(Options{Dir: dir, Bytes: 4 << 20, Log: zerolog.Nop()})
	require.NoError(t, err)
	require.NoError(t, disk.Free())
	c.record(hallSeries, temperatureProperty, "2")
	c.pass(2 * time.Minute)
	require.Empty(t, c.Stats().Stopped)
	id := c.id
	require.NotEmpty(t, id)
	c.reopen()
	require.Equal(t, id, c.id)
}
