// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// copyRig is a store and its copy.
type copyRig struct {
	*clockedStore
	copy   *StoreCopy
	dir    string
	wanted WantedPart
	sent   int // bytes
}

func openCopyRig(t require.TestingT, dir string) *copyRig {
	r := &copyRig{clockedStore: openClocked(t, filepath.Join(dir, "node"), 1<<30), dir: dir}
	r.reopenCopy()
	return r
}

func (r *copyRig) reopenCopy() {
	c, err := OpenCopy(Options{Dir: filepath.Join(r.dir, "hub"), Bytes: 1 << 30, Log: zerolog.Nop(), Now: r.o.Now})
	require.NoError(r.t, err)
	r.copy = c
}

// exchange sends parts until the copy has everything. lose says which answers are lost.
func (r *copyRig) exchange(most, size int, lose func() bool) (done bool) {
	for range most {
		p, ok, err := r.NextPart(r.wanted, size)
		require.NoError(r.t, err)
		if !ok {
			return true
		}
		r.sent += len(p.Bytes)
		again, err := DecodePart(p.Encode())
		require.NoError(r.t, err)
		w, err := r.copy.Add(again)
		require.NoError(r.t, err)
		if !lose() {
			r.wanted = w
		}
	}
	return false
}

func neverLost() bool { return false }

func (r *copyRig) requireEqual(s SeriesKey) {
	q := Query{SeriesKey: s, From: noonTime.Add(-time.Hour).UnixMilli(), To: r.now.Add(time.Hour).UnixMilli()}
	want, err := r.Read(context.Background(), q)
	require.NoError(r.t, err)
	got, err := r.copy.Read(context.Background(), q)
	require.NoError(r.t, err)
	require.Equal(r.t, want, got)
}

func TestACopyHasTheSameCurveAndEachSampleIsSentOnce(t *testing.T) {
	r := openCopyRig(t, t.TempDir())
	for i := range 250 {
		r.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		r.record(hallModeSeries, modeProperty, "mode "+strconv.Itoa(i/7))
		r.pass(time.Minute)
		require.True(t, r.exchange(100, 1000, neverLost))
		r.requireEqual(hallSeries)
	}
	r.requireEqual(hallModeSeries)
	require.Len(t, r.copy.closed, 4)
	logs := int64(r.Stats().Written) + 5*int64(len(logMagic))
	for _, f := range r.closed {
		logs -= f.size
	}
	require.LessOrEqual(t, int64(r.sent), logs, "the logs alone were sent")
	for i := range r.closed {
		a, err := digestFile(r.path(r.closed[i].number, fileSuffix))
		require.NoError(t, err)
		b, err := digestFile(r.copy.path(r.copy.closed[i].number, fileSuffix))
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
}

func TestAnOutageFillsItself(t *testing.T) {
	r := openCopyRig(t, t.TempDir())
	for i := range 500 {
		r.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		r.pass(time.Minute)
		if i < 100 || i > 400 {
			require.True(t, r.exchange(1000, 4096, neverLost))
		}
	}
	r.requireEqual(hallSeries)
}

// A node whose disk was replaced begins with another store: what the hub has of the one before stays.
func TestACopyKeepsWhatItHasWhenTheStoreBeginsAnew(t *testing.T) {
	r := openCopyRig(t, t.TempDir())
	r.record(hallSeries, temperatureProperty, "1")
	r.pass(150 * time.Minute)
	require.True(t, r.exchange(1000, 4096, neverLost))
	require.NoError(t, r.log.f.Close())
	require.NoError(t, os.RemoveAll(r.o.Dir))
	r.Store = nil
	r.reopen()
	r.record(hallSeries, temperatureProperty, "2")
	r.pass(70 * time.Minute)
	require.True(t, r.exchange(1000, 4096, neverLost))
	a, err := r.copy.Read(context.Background(), Query{SeriesKey: hallSeries, From: noonTime.UnixMilli(), To: r.now.Add(time.Minute).UnixMilli(), Points: 100})
	require.NoError(t, err)
	require.Equal(t, noonTime.UnixMilli(), a.Since)
	require.InDelta(t, 1, a.Values[0], 0)
	require.InDelta(t, 2, a.Values[len(a.Values)-1], 0)
}

// Answers are lost, both sides are killed, files are rewritten and dropped: in the end the copy has what the store has.
func TestACopyBecomesEqualWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "history")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		r := openCopyRig(t, dir)
		lose := func() bool { return rapid.IntRange(0, 4).Draw(t, "lost") == 0 }
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			r.record(hallSeries, temperatureProperty, strconv.Itoa(i))
			r.now = r.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "minutes")) * time.Minute)
			r.Flush()
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0:
				r.reopen()
			case 1:
				r.reopenCopy()
				r.wanted = WantedPart{}
			case 2: // a power cut on the hub loses the end of its log
				if r.copy.logged > 0 {
					require.NoError(t, os.Truncate(r.copy.logPath(), r.copy.logged/2))
				}
				r.reopenCopy()
			case 3:
				if len(r.closed) > 0 {
					require.NoError(t, r.thin(rapid.IntRange(0, len(r.closed)-1).Draw(t, "thinned")))
				}
			case 4:
				r.wanted = WantedPart{}
			default:
				r.exchange(rapid.IntRange(1, 20).Draw(t, "parts"), rapid.IntRange(10, 5000).Draw(t, "size"), lose)
			}
		}
		r.Flush()
		r.wanted = WantedPart{}
		for range 100 {
			if r.exchange(1000, 5000, neverLost) {
				break
			}
		}
		last := r.copy.state
		require.Equal(t, r.number, last.Next, "it is at the log")
		q := Query{SeriesKey: hallSeries, From: noonTime.Add(-time.Hour).UnixMilli(), To: r.now.Add(time.Hour).UnixMilli(), Points: 10_000}
		want, err := r.Read(context.Background(), q)
		require.NoError(t, err)
		got, err := r.copy.Read(context.Background(), q)
		require.NoError(t, err)
		require.NotEmpty(t, got.Values)
		require.Equal(t, want.Values[len(want.Values)-1], got.Values[len(got.Values)-1])
	})
}

func FuzzDecodePart(f *testing.F) {
	f.Add(CopyPart{ID: "x", Number: 1, Bytes: []byte("abc")}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePart(b)
		if err != nil {
			return
		}
		again, err := DecodePart(p.Encode())
		require.NoError(t, err)
		require.Equal(t, p.Bytes, again.Bytes)
	})
}

// A file is thinned while half of it is with the copy: the rest of the one before is never to come.
func TestACopyGetsAFileThatBecameSmallerMeanwhile(t *testing.T) {
	r := openCopyRig(t, t.TempDir())
	for i := range 1500 {
		r.record(hallSeries, temperatureProperty, strconv.Itoa(i*i%997))
		if r.now = r.now.Add(6 * time.Second); i%10 == 9 {
			r.Flush()
		}
	}
	before := r.closed[0].size
	require.False(t, r.exchange(1+int(before)/100, 100, neverLost)) // the first one says where the store begins
	require.NoError(t, r.thin(0))
	require.Less(t, r.closed[0].size, before/2)
	require.True(t, r.exchange(1000, 4096, neverLost))
	r.requireEqual(hallSeries)
}

// The hub keeps less of a node than the node records in an hour.
func TestACopyGoesOnAfterAFileThatIsLargerThanItsRoom(t *testing.T) {
	for name, late := range map[string]bool{"that it gets as it is written": false, "that it gets whole": true} {
		t.Run(name, func(t *testing.T) {
			r := openCopyRig(t, t.TempDir())
			r.copy.o.Bytes = 64 << 10
			for i := range 40 {
				r.record(hallModeSeries, modeProperty, strconv.Itoa(i)+strings.Repeat("x", 8<<10))
				r.pass(time.Minute)
				require.True(t, late || r.exchange(100, 4096, neverLost))
			}
			r.pass(time.Hour)
			r.record(hallModeSeries, modeProperty, "small")
			r.pass(3 * time.Hour)
			require.True(t, r.exchange(1000, 4096, neverLost))
			q := Query{SeriesKey: hallModeSeries, From: r.now.Add(-time.Minute).UnixMilli(), To: r.now.UnixMilli(), Points: 10}
			a, err := r.copy.Read(context.Background(), q)
			require.NoError(t, err)
			require.Contains(t, a.Values, "small")
			require.LessOrEqual(t, r.copy.Stats().Bytes, r.copy.o.Bytes)
		})
	}
}
