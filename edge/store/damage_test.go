// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
)

// damageEnv makes the test go through each byte of the database (all) or begin with that seed.
const damageEnv = "STORE_TEST_DAMAGE"

// Whatever byte of the database is not what it was: it is refused, by name, or all that was in it is there. bbolt has
// two heads, of the last transaction and of the one before: where the newer one is damaged, the database is as it was
// before, and the log that the last checkpoint has retired is missed.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	now := makeFullStore(t, dir)
	path := filepath.Join(dir, DirName, fileName)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	used := len(bytes.TrimRight(good, "\x00"))

	d := damageTrial{t: t, dir: dir, path: path, good: good, now: now}
	if os.Getenv(damageEnv) == "all" {
		for at := range used {
			d.flip(at, 1<<(at%8))
		}
		t.Logf("of %d flips %d were refused, %d made no difference", used, d.refused, d.same)
		return
	}
	seed, err := strconv.ParseUint(os.Getenv(damageEnv), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d", damageEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		d.flip(random.IntN(used), 1<<random.IntN(8))
		d.flip(random.IntN(64)+random.IntN(used/4096)*4096, byte(1+random.IntN(255))) // where pages say what they are
	}
	t.Logf("%d were refused, %d made no difference", d.refused, d.same)
}

// makeFullStore makes a store whose database has something of each sort, and says what.
func makeFullStore(t *testing.T, dir string) string {
	t.Helper()
	s := openStore(t, dir, noCheckpoints)
	s.db.NoSync = true // no power fails
	snap := loadSnapshot(t, s)
	for round := range 2 {
		effective := make(map[string]*Effective)
		for i := range 100 {
			key := fmt.Sprintf("devices/lamp-%d/reported/power", i)
			putValue(t, snap.Up, key, fmt.Sprint("on ", round))
			effective[key] = &Effective{Value: []byte("on"), Ver: uint64(i)}
		}
		putValue(t, snap.Up, "devices/long/reported/text", strings.Repeat("long ", 2000))
		require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeChanges(), Effective: effective, Floor: uint64(7 + round)}))
		require.NoError(t, s.checkpoint.finish())
	}
	now := storeText(loadSnapshot(t, s))
	require.NoError(t, s.Close())
	return now
}

func storeText(snap Snapshot) string {
	var b strings.Builder
	fmt.Fprintln(&b, snap.Floor, snap.Up.Digest())
	snap.Up.Range("", func(e link.Entry) bool {
		fmt.Fprintln(&b, e)
		return true
	})
	fmt.Fprintln(&b, len(snap.Effective))
	for i := range 100 {
		fmt.Fprintln(&b, snap.Effective[fmt.Sprintf("devices/lamp-%d/reported/power", i)])
	}
	return b.String()
}

// damageTrial tries what becomes of a database.
type damageTrial struct {
	t             *testing.T
	dir, path     string
	good          []byte
	now           string
	refused, same int
}

func (d *damageTrial) flip(at int, with byte) {
	how := fmt.Sprintf("byte %d flipped with %#x", at, with)
	bad := bytes.Clone(d.good)
	bad[at] ^= with
	require.NoError(d.t, os.WriteFile(d.path, bad, 0o600))
	s, err := Open(Options{Dir: d.dir, Rand: fixedRand, sizes: noCheckpoints})
	if err != nil {
		d.refused++
		require.ErrorContains(d.t, err, filepath.Dir(d.path), how)
		return
	}
	defer func() { require.NoError(d.t, s.closeFiles()) }()
	defer s.checkpoint.abandon()
	require.NoError(d.t, s.Check(), how)
	require.Equal(d.t, d.now, storeText(loadSnapshot(d.t, s)), how)
	d.same++
}

// abandon ends it as a crash does, but without one.
func (c *checkpointer) abandon() {
	close(c.stop)
	<-c.done
}
