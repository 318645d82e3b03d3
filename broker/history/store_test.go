// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

var (
	noonTime            = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	temperatureProperty = resource.Property{Name: "temperature", Type: resource.TypeFloat}
	modeProperty        = resource.Property{Name: "mode", Type: resource.TypeString}
	hallSeries          = SeriesKey{"hall", "temperature"}
	hallModeSeries      = SeriesKey{"hall", "mode"}
)

// clockedStore is a store whose clock the test sets.
type clockedStore struct {
	*Store
	now time.Time
	o   Options
	t   require.TestingT
}

func openClocked(t require.TestingT, dir string, bytes int64) *clockedStore {
	c := &clockedStore{now: noonTime, t: t}
	c.o = Options{Dir: dir, Bytes: bytes, Log: zerolog.Nop(), Now: func() time.Time { return c.now }}
	c.reopen()
	return c
}

// reopen opens the store as a process after this one would, which was killed.
func (c *clockedStore) reopen() {
	s, err := Open(c.o)
	require.NoError(c.t, err)
	if c.Store != nil && c.Store.log != nil {
		require.NoError(c.t, c.Store.log.f.Close())
	}
	c.Store = s
}

func (c *clockedStore) record(s SeriesKey, p resource.Property, value string) {
	c.Record(s, p, value, c.now.UnixMilli(), 0)
}

// pass lets time pass, minute by minute.
func (c *clockedStore) pass(d time.Duration) {
	for end := c.now.Add(d); c.now.Before(end); c.Flush() {
		c.now = c.now.Add(min(time.Minute, end.Sub(c.now)))
	}
}

func (c *clockedStore) read(s SeriesKey, from, to time.Time, points int) resource.HistoryAnswer {
	a, err := c.Read(context.Background(), Query{SeriesKey: s, From: from.UnixMilli(), To: to.UnixMilli(), Points: points})
	require.NoError(c.t, err)
	return a
}

// changes is an answer in words: minutes since noonTime, and the value.
func changes(a resource.HistoryAnswer) (list []string) {
	for i, t := range a.Times {
		list = append(list, fmt.Sprintf("%v %v", time.UnixMilli(t).Sub(noonTime).Round(time.Second), a.Values[i]))
	}
	return list
}

func TestWhatAPropertyWasIsReadBackAcrossHours(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 5 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(20+i))
		c.record(hallSeries, temperatureProperty, strconv.Itoa(20+i)) // unchanged
		c.record(hallModeSeries, modeProperty, "mode "+strconv.Itoa(i/2))
		c.pass(40 * time.Minute)
	}
	require.Equal(t, []string{"0s 20", "40m0s 21", "1h0m0s 21", "1h20m0s 22", "2h0m0s 22", "2h0m0s 23", "2h40m0s 24", "3h0m0s 24", "3h20m0s 24"}, changes(c.read(hallSeries, noonTime, c.now.Add(time.Hour), 500)),
		"each file begins with what was known, and the last value is known up to now")
	require.Equal(t, []string{"0s mode 0", "1h0m0s mode 0", "1h20m0s mode 1", "2h0m0s mode 1", "2h40m0s mode 2", "3h0m0s mode 2", "3h20m0s mode 2"}, changes(c.read(hallModeSeries, noonTime, c.now.Add(time.Hour), 500)))
	a := c.read(hallSeries, noonTime.Add(90*time.Minute), noonTime.Add(100*time.Minute), 500)
	require.Equal(t, []string{"1h30m0s 22", "1h40m0s 22"}, changes(a), "a value is so until the next one")
	require.Equal(t, noonTime.UnixMilli(), a.Since)
	require.Empty(t, changes(c.read(SeriesKey{"hall", "other"}, noonTime, c.now, 500)))
}

func TestWhatIsNotWrittenYetIsRead(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	c.record(hallSeries, temperatureProperty, "20.5")
	require.Equal(t, []string{"0s 20.5"}, changes(c.read(hallSeries, noonTime, noonTime.Add(time.Hour), 500)))
}

func TestAKillCostsAtMostTheLastMinuteAndIsAGap(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	c.record(hallSeries, temperatureProperty, "20")
	c.pass(10 * time.Minute)
	c.record(hallSeries, temperatureProperty, "99") // never written
	c.now = c.now.Add(30 * time.Second)
	c.reopen()
	c.now = c.now.Add(20 * time.Minute)
	c.record(hallSeries, temperatureProperty, "20")
	c.pass(time.Minute)
	require.Equal(t, []string{"0s 20", "10m0s <nil>", "30m30s 20", "31m30s 20"}, changes(c.read(hallSeries, noonTime, c.now.Add(time.Second), 500)))
}

// Whatever of a log's end is missing, the rest is read, and the store goes on.
func TestALogThatIsCutOffAnywhereIsReadUpToThere(t *testing.T) {
	dir := t.TempDir()
	c := openClocked(t, dir, 1<<30)
	for i := range 3 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		c.record(SeriesKey{"hall", "other" + strconv.Itoa(i)}, temperatureProperty, "1")
		c.pass(time.Minute)
	}
	whole, err := os.ReadFile(c.path(1, logSuffix))
	require.NoError(t, err)
	counts := map[int]bool{}
	for size := range whole {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "000000000001.log"), whole[:size], 0o600))
		cut := openClocked(t, dir, 1<<30)
		cut.now = c.now
		list, err := readLog(cut.path(1, logSuffix), hallSeries)
		require.NoError(t, err)
		counts[len(list)] = true
		cut.record(hallSeries, temperatureProperty, "100")
		cut.pass(time.Minute)
		a := cut.read(hallSeries, noonTime, cut.now.Add(time.Minute), 500)
		require.InDelta(t, 100, a.Values[len(a.Values)-1], 0)
	}
	require.Equal(t, map[int]bool{0: true, 1: true, 2: true}, counts)
}

func TestADamagedFileIsFoundAndNeverServed(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 200 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		c.pass(time.Minute)
	}
	want := c.read(hallSeries, noonTime, c.now, 0)
	path := c.path(1, fileSuffix)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := len(fileMagic); i < len(whole); i += 7 {
		b := append([]byte(nil), whole...)
		b[i] ^= 0x20
		require.NoError(t, os.WriteFile(path, b, 0o600))
		before := c.Stats().Damaged
		a := c.read(hallSeries, noonTime, c.now, 0)
		require.NotEmpty(t, a.Times, "the other hours are served")
		require.Less(t, len(a.Times), len(want.Times), "byte %d", i)
		require.Equal(t, before+1, c.Stats().Damaged)
		require.NoFileExists(t, path)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
		require.NoError(t, c.addFile(1))
		clear(c.firsts)
	}
	require.Equal(t, want, c.read(hallSeries, noonTime, c.now, 0))
}

func TestTheOldestIsThinnedAndThenDropped(t *testing.T) {
	const limit = 200 << 10
	c := openClocked(t, t.TempDir(), limit)
	for i := range 14 * 24 * 60 {
		c.now = c.now.Add(time.Minute)
		if i%20 == 0 { // the same to the store, and a twentieth of the waits for the disk
			c.Flush()
			require.LessOrEqual(t, c.Stats().Bytes, int64(limit))
		}
		for j := range 40 {
			c.record(SeriesKey{"hall", strconv.Itoa(j)}, temperatureProperty, strconv.FormatFloat(float64((i*7919+j)%977)/10, 'f', 1, 64))
		}
	}
	st := c.Stats()
	require.NotZero(t, st.Thinned)
	require.NotZero(t, st.Dropped)
	require.Empty(t, st.Stopped)
	a := c.read(SeriesKey{"hall", "0"}, noonTime, c.now, 0)
	require.Greater(t, a.Since, noonTime.UnixMilli())
	require.Equal(t, a.Since, a.Times[0])
	require.NotNil(t, a.Min)
	require.Less(t, *a.Min[0], *a.Max[0])
	require.Greater(t, st.Oldest, noonTime)
}

func TestThinnedNumbersKeepMeanLeastAndGreatest(t *testing.T) {
	at := func(d time.Duration, v float64) sample { return sample{t: noonTime.Add(d).UnixMilli(), number: v} }
	list := []sample{at(0, 10), at(4*time.Minute, 20), at(4*time.Minute+30*time.Second, 0), at(17*time.Minute, 5), {t: noonTime.Add(18 * time.Minute).UnixMilli(), gap: true}}
	got := thinSamples(list, noonTime.Add(time.Hour).UnixMilli())
	require.Equal(t, []sample{
		{t: noonTime.UnixMilli(), form: thinForm, number: (10*240 + 20*30) / 300., low: 0, high: 20},
		{t: noonTime.Add(5 * time.Minute).UnixMilli(), form: thinForm, number: 0, low: 0, high: 0},
		{t: noonTime.Add(10 * time.Minute).UnixMilli(), form: thinForm, number: 0, low: 0, high: 0},
		{t: noonTime.Add(15 * time.Minute).UnixMilli(), form: thinForm, number: 5 * 60 / 180., low: 0, high: 5},
	}, got)
}

func TestPointsAreMeansWithTheLeastAndTheGreatest(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 600 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i%10))
		c.now = c.now.Add(time.Second)
		if i%60 == 59 {
			c.Flush()
		}
	}
	a := c.read(hallSeries, noonTime, noonTime.Add(20*time.Minute), 20)
	require.Equal(t, int64(60_000), a.Step)
	require.Len(t, a.Times, 10, "ten minutes of twenty have a past")
	for i := range a.Times {
		require.InDelta(t, 4.5, a.Values[i], 0.01)
		require.InDelta(t, 0, *a.Min[i], 0)
		require.InDelta(t, 9, *a.Max[i], 0)
	}
}

func TestADeadbandLeavesSmallChangesOut(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i, v := range []string{"20", "20.4", "20.6", "20.9", "21.1"} {
		c.Record(hallSeries, temperatureProperty, v, noonTime.UnixMilli()+int64(i), 0.5)
	}
	require.Equal(t, []any{20., 20.6, 21.1}, c.read(hallSeries, noonTime, noonTime.Add(time.Second), 0).Values)
}

func TestAFullDiskStopsTheHistoryAndItGoesOnWithAGap(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	c.record(hallSeries, temperatureProperty, "20")
	c.pass(2 * time.Minute)
	c.SetLowSpace("3 % of the disk is free")
	c.record(hallSeries, temperatureProperty, "21")
	c.pass(2 * time.Minute)
	require.Contains(t, c.Stats().Stopped, "3 %")
	c.record(hallSeries, temperatureProperty, "22")
	c.pass(time.Minute)
	require.NotZero(t, c.Stats().Lost)
	c.SetLowSpace("")
	c.pass(time.Minute)
	require.Empty(t, c.Stats().Stopped)
	require.Equal(t, []string{"0s 20", "2m0s <nil>", "6m0s 22"}, changes(c.read(hallSeries, noonTime, c.now.Add(time.Second), 500)))
}

func TestWhatIsNotToBeKeptIsDeletedFromTheFiles(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 300 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		c.record(SeriesKey{"anna", "presence"}, modeProperty, "room "+strconv.Itoa(i))
		c.pass(time.Minute)
	}
	require.NoError(t, c.Prune(func(s SeriesKey) int64 {
		if s.Device == "anna" {
			return math.MaxInt64
		}
		return noonTime.Add(90 * time.Minute).UnixMilli()
	}, true))
	c.pass(2 * time.Hour)
	files, err := filepath.Glob(filepath.Join(c.o.Dir, "*.hist"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files[:4] {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(b), "room")
		require.NotContains(t, string(b), "anna")
	}
	a := c.read(hallSeries, noonTime, c.now, 0)
	require.Equal(t, noonTime.Add(90*time.Minute).UnixMilli(), a.Times[0])
	require.InDelta(t, 90, a.Values[0], 0)
	require.Equal(t, a.Times[0], a.Since)
}

// TestAFileIsReadForWhatIsTooOldOnlyOnceItMayHaveSome: time alone makes it so, unless the rules change.
func TestAFileIsReadForWhatIsTooOldOnlyOnceItMayHaveSome(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 240 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		c.record(hallModeSeries, modeProperty, strconv.Itoa(i))
		c.pass(time.Minute)
	}
	keep := 6 * time.Hour
	floor := func(name SeriesKey) int64 {
		if name == hallModeSeries {
			return math.MinInt64
		}
		return c.now.Add(-keep).UnixMilli()
	}
	require.NoError(t, c.Prune(floor, true))
	first := c.path(c.closed[0].number, fileSuffix)
	require.NoError(t, os.Rename(first, first+".away"))
	for range 2 {
		c.pass(30 * time.Minute)
		require.NoError(t, c.Prune(floor, false), "it is not read")
	}
	require.ErrorContains(t, c.Prune(floor, true), first, "the rules are others")
	c.pass(2 * time.Hour)
	require.ErrorContains(t, c.Prune(floor, false), first, "it has what is too old")
	require.NoError(t, os.Rename(first+".away", first))
	require.NoError(t, c.Prune(floor, false))
	a := c.read(hallSeries, noonTime, c.now, 0)
	require.GreaterOrEqual(t, a.Times[0], c.now.Add(-keep).UnixMilli())
	require.Equal(t, noonTime.UnixMilli(), c.read(hallModeSeries, noonTime, c.now, 0).Times[0], "of a series that is kept nothing is gone")
}

// A store is compared with a list of all that was reported.
func TestTheStoreHasWhatWasReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "history")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		c := openClocked(t, dir, 1<<30)
		type change struct {
			t int64
			v any
		}
		var written, unwritten []change
		last := any(nil)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c.now = c.now.Add(time.Duration(rapid.Int64Range(1, 1000*1500).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				c.Flush()
				written, unwritten = append(written, unwritten...), nil
			case 1:
				unwritten, last = nil, nil
				at := c.written
				c.reopen()
				if len(written) > 0 && written[len(written)-1].v != nil {
					written = append(written, change{at.UnixMilli(), nil})
				}
			default:
				v := float64(rapid.IntRange(0, 3).Draw(t, "value"))
				c.record(hallSeries, temperatureProperty, strconv.FormatFloat(v, 'f', -1, 64))
				if last != v {
					unwritten = append(unwritten, change{c.now.UnixMilli(), v})
				}
				last = v
			}
		}
		a := c.read(hallSeries, noonTime.Add(-time.Hour), c.now.Add(time.Minute), 0)
		var got []change
		for i := range a.Times {
			if len(got) == 0 && a.Values[i] == nil || len(got) > 0 && got[len(got)-1].v == a.Values[i] {
				continue // each file begins with what was known
			}
			got = append(got, change{a.Times[i], a.Values[i]})
		}
		want := append(written, unwritten...)
		require.Len(t, got, len(want), "%v\n%v", got, want)
		for i := range want {
			require.Equal(t, want[i].v, got[i].v)
			if want[i].v != nil {
				require.Equal(t, want[i].t, got[i].t)
			}
		}
	})
}

func FuzzOpenFile(f *testing.F) {
	dir := f.TempDir()
	c := openClocked(f, dir, 1<<30)
	for i := range 5 {
		c.record(hallSeries, temperatureProperty, strconv.Itoa(i))
		c.record(hallModeSeries, modeProperty, strconv.Itoa(i))
		c.pass(15 * time.Minute)
	}
	for _, suffix := range []string{fileSuffix, logSuffix} {
		b, err := os.ReadFile(c.path(1, suffix))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		for name, body := range map[string][]byte{"1.log": b, "2.hist": b} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), body, 0o600))
		}
		_, _ = closeLog(filepath.Join(dir, "1.log"), filepath.Join(dir, "1.hist"))
		r, err := openFile(filepath.Join(dir, "2.hist"))
		if err != nil {
			return
		}
		defer r.Close()
		for i := range r.entries {
			_, _ = r.samples(&r.entries[i])
		}
	})
}

// A decimal is the same again, whatever the decimals of those around it, and takes few bytes.
func TestDecimalsAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e encoder
		e.reset()
		var want, got []float64
		flush := func() {
			list, err := decodeChunk(nil, e.form, e.bytes())
			require.NoError(t, err)
			for _, v := range list {
				got = append(got, v.number)
			}
			e.reset()
		}
		for i := range rapid.IntRange(1, 100).Draw(t, "samples") {
			v := rapid.OneOf(rapid.Float64(), rapid.Map(rapid.Int64Range(-1e12, 1e12), func(n int64) float64 { return float64(n) / 1000 })).Draw(t, "value")
			text := strconv.FormatFloat(v, 'f', rapid.IntRange(-1, 7).Draw(t, "digits"), 64)
			s := parseSample(resource.TypeDouble, text, int64(i))
			if !e.fits(s, 50) {
				flush()
			}
			e.append(s)
			want = append(want, s.number)
		}
		flush()
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "%v", want[i])
		}
	})
	var e encoder
	e.reset()
	for i := range 120 {
		e.append(parseSample(resource.TypeFloat, strconv.FormatFloat(20+float64(i*7919%40)/10, 'f', 1, 64), noonTime.UnixMilli()+int64(i)*1000+int64(i*31%20)))
	}
	require.Less(t, len(e.bytes()), 120*5)
}

// What a camera reports in a minute may be more than a log's block takes, and more than the memory has room for.
func TestAMinuteOfLargeTextsIsKeptAsFarAsThereIsRoom(t *testing.T) {
	c := openClocked(t, t.TempDir(), 1<<30)
	for i := range 50 {
		c.now = c.now.Add(time.Second)
		c.record(hallModeSeries, modeProperty, strconv.Itoa(i)+strings.Repeat("x", 1<<20))
	}
	require.Equal(t, uint64(50-31), c.Stats().Lost)
	c.Flush()
	c.record(hallModeSeries, modeProperty, "small")
	c.Flush()
	c.reopen()
	a := c.read(hallModeSeries, noonTime, c.now.Add(time.Second), 500)
	require.Greater(t, len(a.Values), 31)
	require.Contains(t, a.Values, "small")
	require.Contains(t, a.Values, "30"+strings.Repeat("x", 1<<20))
}

func TestALogThatIsLargeBecomesAFileBeforeItsHourIsOver(t *testing.T) {
	const limit = 8 * leastLog
	c := openClocked(t, t.TempDir(), limit)
	for i := range 40 {
		c.record(hallModeSeries, modeProperty, strconv.Itoa(i)+strings.Repeat("x", 1<<18))
		c.pass(time.Minute)
		require.LessOrEqual(t, c.Stats().Bytes, int64(limit+leastLog))
	}
	require.NotZero(t, c.Stats().Dropped+c.Stats().Thinned)
}
