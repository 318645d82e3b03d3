// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
)

// killEnv makes the test binary the writer that gets killed.
const killEnv = "STORE_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const killKeys = 100

// killSizes make for checkpoints all the time.
var killSizes = sizes{segment: 4 << 10, slack: 4 << 10, chunk: 40}

// writeUntilKilled commits batches, each of which gives three keys and a value in force the
// same number, and says the number once it is stored.
func writeUntilKilled(dir string) error {
	s, err := Open(Options{Dir: dir, Rand: rand.Uint64, sizes: killSizes})
	if err != nil {
		return err
	}
	snap, err := s.Load()
	if err != nil {
		return err
	}
	for n := snap.Floor + 1; ; n++ {
		value := []byte(strconv.FormatUint(n, 10))
		for i := range 3 {
			e := link.Entry{Key: fmt.Sprintf("devices/d%d/reported/p%d", n%killKeys, i), Value: value}
			if _, _, err := snap.Up.Put(e); err != nil {
				return err
			}
		}
		if n%7 == 0 {
			snap.Up.Delete(fmt.Sprintf("devices/d%d/reported/p0", (n*31)%killKeys), 0, "")
		}
		in := map[string]*Effective{"devices/d/desired/p": {Value: value, Ver: n}}
		if err := s.Commit(Batch{Up: snap.Up.TakeChanges(), Effective: in, Floor: n}); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// However often the writer is killed, all that it said is there, and whole.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	var said uint64
	for range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "it works")
		for more, left := true, 100+rand.IntN(300); more; more = lines.Scan() {
			if left--; left == 0 {
				_ = cmd.Process.Kill() // it may say some more before it is dead
			}
			n, err := strconv.ParseUint(lines.Text(), 10, 64)
			require.NoError(t, err, lines.Text())
			said = max(said, n)
		}
		_ = cmd.Wait()

		s := openStore(t, dir, killSizes)
		require.NoError(t, s.Check())
		snap := loadSnapshot(t, s)
		require.GreaterOrEqual(t, snap.Floor, said)
		require.LessOrEqual(t, snap.Floor, said+1, "one more may be stored than was said")
		last := strconv.FormatUint(snap.Floor, 10)
		require.Equal(t, last, string(snap.Effective["devices/d/desired/p"].Value))
		for i := 1; i < 3; i++ {
			e, _ := snap.Up.Get(fmt.Sprintf("devices/d%d/reported/p%d", snap.Floor%killKeys, i))
			require.Equal(t, last, string(e.Value))
		}
		s.checkpoint.abandon() // no last one: the next to be killed finds all kinds of logs
		require.NoError(t, s.closeFiles())
	}
	s := openStore(t, dir, killSizes)
	position, err := s.position()
	require.NoError(t, err)
	require.Greater(t, position, uint64(3), "there were checkpoints")
	require.NoError(t, s.Close())
}
