// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

const meterPrefix = "devices/meter/reported/"

// report commits a value that may wait.
func report(t testing.TB, s *Store, up *link.Owner, key, value string) link.Entry {
	t.Helper()
	e, _, err := up.Put(link.Entry{Key: key, Value: []byte(value)})
	require.NoError(t, err)
	require.NoError(t, s.Commit(Batch{Up: up.TakeChanges(), MayWait: map[string]bool{key: true}}))
	return e
}

// killStore leaves the files as a killed process does.
func killStore(t testing.TB, s *Store) {
	t.Helper()
	s.checkpoint.abandon()
	require.NoError(t, s.closeFiles())
}

func valueOf(t testing.TB, o *link.Owner, key string) string {
	t.Helper()
	e, ok := o.Get(key)
	require.True(t, ok, key)
	return string(e.Value)
}

func TestWhatMayWaitIsWrittenByTheNextFlush(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	up := loadSnapshot(t, s).Up
	report(t, s, up, meterPrefix+"power", "1")
	report(t, s, up, meterPrefix+"power", "2") // what is noted before the first change waits
	size := s.Stats().LogBytes
	for n := range 100 {
		report(t, s, up, meterPrefix+"power", strconv.Itoa(n))
	}
	require.Equal(t, size, s.Stats().LogBytes, "nothing was written")
	again := loadSnapshot(t, s)
	require.Equal(t, "99", valueOf(t, again.Up, meterPrefix+"power"), "who reads the store back has it")
	require.Equal(t, up.Digest(), again.Up.Digest())
	require.Equal(t, up.Seq(), again.Up.Seq())
	require.Zero(t, again.Lost)

	require.True(t, s.Waiting())
	require.NoError(t, s.Commit(Batch{Flush: true}))
	require.Less(t, s.Stats().LogBytes, size+300, "one change of a hundred")
	killStore(t, s)
	s = openStore(t, dir)
	snap := loadSnapshot(t, s)
	require.Equal(t, "99", valueOf(t, snap.Up, meterPrefix+"power"))
	require.Equal(t, up.Seq(), snap.Up.Seq())
	require.Zero(t, snap.Lost)
	report(t, s, snap.Up, meterPrefix+"power", "a")
	report(t, s, snap.Up, meterPrefix+"power", "b")
	report(t, s, snap.Up, meterPrefix+"power", "c")
	require.NoError(t, s.Close())
	s = openStore(t, dir)
	require.Equal(t, "c", valueOf(t, loadSnapshot(t, s).Up, meterPrefix+"power"), "a store that closes writes what waits")
	require.NoError(t, s.Close())
}

// A value that seldom changes never waits, and what waits of a Device is written with what may not.
func TestWhatIsWrittenOfADeviceIsWhatItWasAtOneMoment(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	up := loadSnapshot(t, s).Up
	for _, v := range []string{"1", "2", "3"} {
		report(t, s, up, meterPrefix+"power", v)
		report(t, s, up, "devices/other/reported/power", v)
	}
	report(t, s, up, "devices/door/reported/open", "true")
	putValue(t, up, "devices/meter/alarms/high", "{}")
	require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
	last := report(t, s, up, meterPrefix+"power", "4")
	killStore(t, s)

	s = openStore(t, dir)
	snap := loadSnapshot(t, s)
	require.Equal(t, "true", valueOf(t, snap.Up, "devices/door/reported/open"))
	require.Equal(t, "3", valueOf(t, snap.Up, meterPrefix+"power"), "as it was when the alarm was raised")
	require.NotEqual(t, "3", valueOf(t, snap.Up, "devices/other/reported/power"))
	require.GreaterOrEqual(t, snap.Up.Seq(), last.Seq, "no number is given twice")
	require.NotZero(t, snap.Lost)
	e, _ := snap.Up.Get(meterPrefix + "power")
	require.Greater(t, e.Ver+snap.Lost, last.Ver)
	require.NoError(t, s.Close())
}

// afterKill is a value as a store has it that is opened after a kill.
func afterKill(t testing.TB, s *Store, dir, key string) (value string, snap Snapshot) {
	t.Helper()
	killStore(t, s)
	s = openStore(t, dir)
	snap = loadSnapshot(t, s)
	require.NoError(t, s.Close())
	return valueOf(t, snap.Up, key), snap
}

// Who says that a value may not wait has it on disk, also if another one has published the same value before, which waits.
func TestAValueThatMayNotWaitIsWrittenThoughItIsAsItWas(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	up := loadSnapshot(t, s).Up
	for _, v := range []string{"1", "2", "3"} {
		report(t, s, up, meterPrefix+"power", v)
	}
	b := Batch{Up: up.TakeChanges(), MayWait: map[string]bool{meterPrefix + "power": false}}
	require.True(t, s.Needs(b))
	require.NoError(t, s.Commit(b))
	require.False(t, s.Needs(b))
	value, _ := afterKill(t, s, dir, meterPrefix+"power")
	require.Equal(t, "3", value)
}

// A value that is reported time and again, and seldom changes, never waits.
func TestAReportThatChangesNothingIsNoWrite(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	up := loadSnapshot(t, s).Up
	report(t, s, up, meterPrefix+"power", "1")
	require.NoError(t, s.Commit(Batch{Flush: true}))
	require.False(t, s.Waiting())
	report(t, s, up, meterPrefix+"power", "1")
	require.False(t, s.Waiting())
	report(t, s, up, meterPrefix+"power", "2")
	value, snap := afterKill(t, s, dir, meterPrefix+"power")
	require.Equal(t, "2", value)
	require.Zero(t, snap.Lost)
}

// However many numbers other keys are given while a change waits: a store that is killed knows that versions were given which it doesn't
// have, or has them.
func TestAKillAfterMoreNumbersThanWereNoted(t *testing.T) {
	for _, more := range []int{heldRoom - 3, heldRoom - 2, heldRoom - 1, heldRoom, heldRoom + 10} {
		dir := t.TempDir()
		s := openStore(t, dir)
		up := loadSnapshot(t, s).Up
		var last link.Entry
		for _, v := range []string{"1", "2", "3"} {
			last = report(t, s, up, meterPrefix+"power", v)
		}
		for n := range more {
			putValue(t, up, "devices/other/reported/power", strconv.Itoa(n))
		}
		require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
		_, snap := afterKill(t, s, dir, meterPrefix+"power")
		e, _ := snap.Up.Get(meterPrefix + "power")
		require.GreaterOrEqual(t, e.Ver+snap.Lost, last.Ver, more)
		require.GreaterOrEqual(t, snap.Up.Seq(), up.Seq(), more)
	}
}

// brokenFile is a log's file that can't be written.
type brokenFile struct {
	*os.File
	broken *bool
}

func (f brokenFile) WriteAt(b []byte, at int64) (int, error) {
	if *f.broken {
		return 0, errors.New("no space left on device")
	}
	return f.File.WriteAt(b, at)
}

// TestWaitingChangesOutliveAFailedCommit: they were acknowledged.
func TestWaitingChangesOutliveAFailedCommit(t *testing.T) {
	broken := false
	s, err := Open(Options{Dir: t.TempDir(), Rand: fixedRand, wrap: func(f *os.File) wal.File { return brokenFile{f, &broken} }})
	require.NoError(t, err)
	up := loadSnapshot(t, s).Up
	for _, v := range []string{"1", "2", "3"} {
		report(t, s, up, meterPrefix+"power", v)
	}
	broken = true
	putValue(t, up, meterPrefix+"power", "4")
	require.Error(t, s.Commit(Batch{Up: up.TakeChanges()}))
	require.Error(t, s.Commit(Batch{Flush: true}))
	up = loadSnapshot(t, s).Up
	require.Equal(t, "3", valueOf(t, up, meterPrefix+"power"))
	broken = false
	report(t, s, up, meterPrefix+"power", "5")
	require.NoError(t, s.Close())
}

// Whatever waits and whenever the process is killed: what may not wait is there, and of a value that may there is one that it had since
// the last flush.
func TestRandomChangesAndKills(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(3, 4))
	s := openStore(t, dir, killSizes)
	up := loadSnapshot(t, s).Up
	hard, soft := map[string]string{}, map[string][]string{}
	given := map[string]uint64{}
	flushed := func() {
		for key, values := range soft {
			soft[key] = values[len(values)-1:]
		}
	}
	for n := range 6000 {
		value := strconv.Itoa(n)
		b := Batch{MayWait: make(map[string]bool), Flush: rnd.IntN(200) == 0}
		for range 1 + rnd.IntN(4) {
			key := fmt.Sprintf("devices/d%d/reported/p%d", rnd.IntN(6), rnd.IntN(3))
			may := rnd.IntN(20) > 0
			e, _, err := up.Put(link.Entry{Key: key, Value: []byte(value)})
			require.NoError(t, err)
			given[key] = e.Ver
			if before, noted := b.MayWait[key]; !noted || before {
				b.MayWait[key] = may
			}
		}
		if rnd.IntN(10) == 0 {
			key := fmt.Sprintf("devices/d%d/override/p", rnd.IntN(6))
			putValue(t, up, key, value)
			hard[key] = value
		}
		if b.Flush {
			flushed()
		}
		for key, may := range b.MayWait {
			if !may || len(soft[key]) == 0 {
				soft[key] = nil
			}
			soft[key] = append(soft[key], value)
		}
		b.Up = up.TakeChanges()
		require.NoError(t, s.Commit(b))
		require.LessOrEqual(t, s.held.bytes, heldBytes+1000)
		if rnd.IntN(300) > 0 {
			continue
		}
		seq := up.Seq()
		killStore(t, s)
		s = openStore(t, dir, killSizes)
		snap := loadSnapshot(t, s)
		up = snap.Up
		require.GreaterOrEqual(t, up.Seq(), seq)
		for key, value := range hard {
			require.Equal(t, value, valueOf(t, up, key))
		}
		for key, values := range soft {
			e, _ := up.Get(key)
			require.Contains(t, values, string(e.Value), key)
			require.GreaterOrEqual(t, e.Ver+snap.Lost, given[key], key)
			e.Ver = given[key] + 1 // as the twin does
			_, _, err := up.Put(e)
			require.NoError(t, err)
			soft[key] = []string{string(e.Value)}
		}
		require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
	}
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())
}
