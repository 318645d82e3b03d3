package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
)

// raw changes a file that nobody has open.
func raw(t *testing.T, path string, change func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

// asVersion makes a file what it would have been when that was the newest version.
func asVersion(t *testing.T, path string, version uint64) {
	t.Helper()
	raw(t, path, func(tx *bbolt.Tx) error {
		now, err := readState(tx)
		require.NoError(t, err)
		meta := tx.Bucket(bucketMeta)
		require.NoError(t, meta.Delete(keyState))
		require.NoError(t, meta.Put(keyRev2, number(now.rev)))
		require.NoError(t, meta.Put(keySeq2, number(now.seq)))
		require.NoError(t, meta.Put(keyVersion, number(version)))
		if version == formatPlain {
			require.NoError(t, meta.Put(keyIdentity2, binary.BigEndian.AppendUint32(nil, now.identity)))
		}
		old, err := tx.CreateBucket(bucketKinds2)
		require.NoError(t, err)
		kinds := tx.Bucket(bucketKinds)
		require.NoError(t, kinds.ForEach(func(name, _ []byte) error {
			kind, err := old.CreateBucket(name)
			require.NoError(t, err)
			if floor := kinds.Bucket(name).Get(keyFloor); floor != nil {
				require.NoError(t, kind.Put(keyFloor, floor[4:]))
			}
			for _, bucket := range [][]byte{bucketData, bucketStatus, bucketTombs} {
				to, err := kind.CreateBucket(bucket)
				require.NoError(t, err)
				require.NoError(t, kinds.Bucket(name).Bucket(bucket).ForEach(func(k, v []byte) error {
					return to.Put(k, seal2(v[4:]))
				}))
			}
			return nil
		}))
		require.NoError(t, tx.DeleteBucket(bucketKinds))
		if version == formatPlain {
			return nil
		}
		for from, to := range map[string][]byte{"replicas": bucketNodes1, "reported": bucketUp1} {
			b, err := tx.CreateBucket(to)
			require.NoError(t, err)
			require.NoError(t, tx.Bucket([]byte(from)).ForEach(func(k, v []byte) error { return b.Put(k, v[4:]) }))
			require.NoError(t, tx.DeleteBucket([]byte(from)))
		}
		return nil
	})
}

// seal2 is an object's record as version 2 had it: a checksum of what follows.
func seal2(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))), body...)
}

// Files of before are read as they are by who only looks, and brought up to date by who opens them.
func TestFilesOfBefore(t *testing.T) {
	for _, old := range []uint64{formatBare, formatPlain} {
		path := filepath.Join(t.TempDir(), "hub.db")
		_, all := ofAllSorts(t, path)
		asVersion(t, path, old)
		s, err := Open(Options{Path: path, ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, s.Check())
		if old == formatBare {
			_, rest, _ := strings.Cut(all, "\n")
			require.Contains(t, everything(t, s), rest)
		} else {
			require.Equal(t, all, everything(t, s))
		}
		require.NoError(t, s.Close())

		s = open(t, Options{Path: path})
		if id, older := s.Identity(); old == formatBare {
			require.NotZero(t, id)
			require.True(t, older, "it was in use before it had one")
			_, all, _ = strings.Cut(all, "\n")
		} else {
			require.False(t, older)
		}
		require.Contains(t, everything(t, s), all)
		_, err = s.Create(ctx, device("new", "{}"))
		require.NoError(t, err)
		require.NoError(t, s.Check())
		all = everything(t, s)
		require.NoError(t, s.Close())
		raw(t, path, func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketKinds2, bucketNodes1, bucketUp1} {
				require.Nil(t, tx.Bucket(name))
			}
			require.Equal(t, uint64(formatVersion), version(tx))
			return nil
		})
		s = open(t, Options{Path: path})
		require.Equal(t, all, everything(t, s))
		require.NoError(t, s.Close())
	}
}

// upgradeEnv makes the test binary upgrade a file, and kill itself after so many transactions.
const upgradeEnv = "STORE_BOLT_TEST_UPGRADE"

func dieUpgrading(of string) {
	after, path, _ := strings.Cut(of, " ")
	left, err := strconv.Atoi(after)
	if err != nil {
		panic(err)
	}
	db, err := openFile(Options{Path: path, LockTimeout: time.Minute})
	if err != nil {
		panic(err)
	}
	db.NoSync = true // what was written outlives a process
	u := upgrader{step: 4000}
	u.update = func(do func(*bbolt.Tx) error) error {
		if left--; left < 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return db.Update(do)
	}
	if err := db.View(func(tx *bbolt.Tx) error { u.from = formatOf(tx); return nil }); err != nil {
		panic(err)
	}
	if err := u.run(); err != nil {
		panic(err)
	}
}

// Killed after any of its transactions, an upgrade has changed nothing, and is made up for.
func TestKilledUpgrading(t *testing.T) {
	for _, old := range []uint64{formatBare, formatPlain} {
		path := filepath.Join(t.TempDir(), "hub.db")
		_, all := ofAllSorts(t, path)
		if asVersion(t, path, old); old == formatBare {
			_, all, _ = strings.Cut(all, "\n")
		}
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		killed := 0
		for ; ; killed++ {
			require.Less(t, killed, 100)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", upgradeEnv, killed, path))
			out, err := cmd.CombinedOutput()
			s, failed := Open(Options{Path: path, ReadOnly: true})
			require.NoError(t, failed)
			require.Contains(t, everything(t, s), all)
			require.NoError(t, s.Close())
			if err == nil {
				break
			}
			require.ErrorContains(t, err, "signal: killed", "%s", out)
			raw(t, path, func(tx *bbolt.Tx) error {
				require.Equal(t, old, version(tx))
				return nil
			})
			db, err := openFile(Options{Path: path})
			require.NoError(t, err)
			db.NoSync = true
			require.NoError(t, upgrade(db, Options{Path: path}))
			require.NoError(t, db.Close())
			s, err = Open(Options{Path: path, ReadOnly: true})
			require.NoError(t, err)
			require.Contains(t, everything(t, s), all)
			require.NoError(t, s.Check())
			require.NoError(t, s.Close())
			require.NoError(t, os.WriteFile(path, good, 0o600))
		}
		require.Greater(t, killed, 4)
	}
}

// What is damaged in a file of before is told of, and nothing is changed.
func TestDamagedFilesOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	ofAllSorts(t, path)
	asVersion(t, path, formatPlain)
	key := objectKey("default", "lamp-7")
	raw(t, path, func(tx *bbolt.Tx) error {
		data := inside(tx, [][]byte{bucketKinds2, []byte("Device"), bucketData})
		bad := bytes.Clone(data.Get(key))
		bad[len(bad)-1] ^= 4
		return data.Put(key, bad)
	})
	for range 2 {
		_, err := Open(Options{Path: path})
		require.ErrorContains(t, err, path+` is damaged: "default\x00lamp-7": damaged record; restore it from a backup`)
	}
	raw(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyIdentity2, []byte{1, 2}) })
	_, err := Open(Options{Path: path, ReadOnly: true})
	require.ErrorContains(t, err, "is damaged: its identity is none")
}

// A file of a later version says so, and is left as it is.
func TestFilesOfALaterVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	require.NoError(t, open(t, Options{Path: path}).Close())
	raw(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, number(formatVersion+1)) })
	_, err := Open(Options{Path: path})
	require.ErrorContains(t, err, fmt.Sprintf("its format is %d, this program reads up to %d", formatVersion+1, formatVersion))
	raw(t, path, func(tx *bbolt.Tx) error {
		require.Equal(t, uint64(formatVersion+1), version(tx))
		return nil
	})
}

// Damage of what a node reported is found when the file is opened.
func TestDamagedReports(t *testing.T) {
	for bucket, key := range map[string]string{"reported": "n1\x00level", "replicas": "n1"} {
		path := filepath.Join(t.TempDir(), "hub.db")
		s, err := Open(Options{Path: path})
		require.NoError(t, err)
		change := store.NodeChange{Node: "n1", Meta: []byte("meta"), Put: []store.Item{{Key: "level", Value: []byte("12")}}}
		require.NoError(t, s.Commit(t.Context(), []store.NodeChange{change}))
		require.NoError(t, s.Close())
		raw(t, path, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			bad := append([]byte(nil), b.Get([]byte(key))...)
			bad[len(bad)-1] ^= 4
			return b.Put([]byte(key), bad)
		})
		for _, look := range []bool{true, false} {
			_, err = Open(Options{Path: path, ReadOnly: look})
			require.ErrorContains(t, err, path+" is damaged: what node n1 reported: ")
			require.ErrorContains(t, err, "restore it from a backup")
			require.ErrorIs(t, err, errRecord)
		}
	}
}
