// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// killEnv makes the test binary the program that is killed.
const killEnv = "HISTORY_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		if err := recordUntilKilled(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// recordUntilKilled records a value of three series each second of its own clock, whose minutes pass at once, and says up to which one was
// written.
func recordUntilKilled(dir string) error {
	var now time.Time
	s, err := Open(Options{Dir: dir, Bytes: 4 << 20, Log: zerolog.Nop(), Now: func() time.Time { return now }})
	if err != nil {
		return err
	}
	if now = s.written.Truncate(time.Second).Add(time.Hour); s.written.Before(noonTime) {
		now = noonTime
	}
	for {
		for range 60 {
			now = now.Add(time.Second)
			for p := range 3 {
				s.Record(SeriesKey{"hall", strconv.Itoa(p)}, temperatureProperty, strconv.FormatInt(now.Unix(), 10), now.UnixMilli(), 0)
			}
		}
		fmt.Println("recorded", now.Unix())
		if s.Flush(); s.Stats().Stopped != "" {
			return fmt.Errorf("%s", s.Stats().Stopped)
		}
		fmt.Println("written", now.Unix())
	}
}

// TestAKillAtAnyMomentCostsAtMostTheLastMinute of a program: all that was written is there, and nothing else.
func TestAKillAtAnyMomentCostsAtMostTheLastMinute(t *testing.T) {
	dir, seed := t.TempDir(), rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	written := map[int64]bool{} // minutes, by their ends
	for range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		maybe, after := int64(0), time.Duration(rnd.IntN(30))*time.Millisecond
		for lines, left := bufio.NewScanner(out), 1+rnd.IntN(40); lines.Scan(); left-- {
			if left == 0 {
				time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it says some more before it is dead
			}
			var what string
			var at int64
			_, err := fmt.Sscan(lines.Text(), &what, &at)
			require.NoError(t, err, lines.Text())
			require.NotEqual(t, "error", what, lines.Text())
			if maybe = at; what == "written" {
				written[at], maybe = true, 0
			}
		}
		_ = cmd.Wait()

		c := openClocked(t, dir, 4<<20)
		require.Zero(t, c.Stats().Damaged)
		for p := range 3 {
			found := map[int64]int{}
			err := c.Export(context.Background(), Query{SeriesKey: SeriesKey{"hall", strconv.Itoa(p)}, From: noonTime.UnixMilli(), To: noonTime.AddDate(1, 0, 0).UnixMilli()}, countMinutes(found))
			require.NoError(t, err)
			for minute := range written {
				require.GreaterOrEqual(t, found[minute], 59, "of the minute to %d", minute)
			}
			for minute := range found {
				require.True(t, written[minute] || minute == maybe, "the minute to %d was never recorded", minute)
			}
			if p == 2 && found[maybe] > 0 {
				written[maybe] = true
			}
		}
		if c.log != nil {
			require.NoError(t, c.log.f.Close())
		}
	}
	require.Greater(t, len(written), 12)
}

// countMinutes counts the values of each minute, by its end.
func countMinutes(found map[int64]int) func(resource.HistoryAnswer) error {
	return func(a resource.HistoryAnswer) error {
		for i, at := range a.Times {
			if v, ok := a.Values[i].(float64); ok && at == int64(v)*1000 {
				found[(at/1000+59)/60*60]++
			}
		}
		return nil
	}
}
