// SPDX-License-Identifier: Apache-2.0

package disk

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

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
)

// damageEnv makes the test go through each byte of the file (all) or begin with that seed.
const damageEnv = "STORE_DISK_TEST_DAMAGE"

// Whatever byte of the log is not what it was: the store is refused, by name of the file, for what is missing was acknowledged.
func TestDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	makeFullStore(t, dir)
	files := readDir(t, dir)
	const segment = "000000000001.log"
	good := []byte(files[segment])

	broken := filepath.Join(t.TempDir(), "broken")
	refused := func(bad []byte, how string) {
		t.Helper()
		require.NoError(t, os.RemoveAll(broken))
		require.NoError(t, os.Mkdir(broken, 0o700))
		for name, text := range files {
			if name == segment {
				text = string(bad)
			}
			if name != "reserve" {
				require.NoError(t, os.WriteFile(filepath.Join(broken, name), []byte(text), 0o600))
			}
		}
		_, err := Open(Options{Path: broken, ReadOnly: true})
		require.ErrorContains(t, err, filepath.Join(broken, segment), how)
	}
	flip := func(at int, with byte) {
		bad := bytes.Clone(good)
		bad[at] ^= with
		refused(bad, fmt.Sprintf("byte %d flipped with %#x", at, with))
	}
	if os.Getenv(damageEnv) == "all" {
		for at := range good {
			flip(at, 1<<(at%8))
		}
		return
	}
	seed, err := strconv.ParseUint(os.Getenv(damageEnv), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d", damageEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		flip(random.IntN(len(good)), 1<<random.IntN(8))
		flip(len(good)-1-random.IntN(100), byte(1+random.IntN(255))) // in the last commit
		bad := bytes.Clone(good)
		at := random.IntN(len(good))
		bad[at]++
		for ; at < len(good) && random.IntN(64) > 0; at++ {
			bad[at] = byte(random.Uint32())
		}
		if !bytes.Equal(bad, good) {
			refused(bad, "a stretch of bytes")
		}
		refused(good[:random.IntN(len(good))], "cut short")
	}
}

// makeFullStore makes a store that has something of each sort.
func makeFullStore(t *testing.T, dir string) {
	t.Helper()
	s := openStore(t, Options{Path: dir, Tombstones: 8})
	must := func(_ store.Object, err error) { require.NoError(t, err) }
	for i := range 40 {
		o := device(fmt.Sprint("lamp-", i), `{"n":`+fmt.Sprint(i)+`}`)
		if i%3 == 0 {
			o.Status = []byte(`{"power":"on"}`)
		}
		must(s.Create(ctx, o))
	}
	must(s.Create(ctx, device("long", `{"n":"`+strings.Repeat("long ", 2000)+`"}`)))
	for i := range 5 {
		must(s.Delete(ctx, device(fmt.Sprint("lamp-", 3*i), "").Key, 0))
	}
	c := store.NodeChange{Node: "n1", Meta: []byte("meta")}
	for i := range 60 {
		c.Put = append(c.Put, store.ReplicaItem{Key: fmt.Sprint("devices/lamp-", i, "/reported/power"), Value: []byte("on")})
	}
	require.NoError(t, s.Commit(ctx, []store.NodeChange{c}))
	must(s.Update(ctx, device("lamp-7", `{"n":"last"}`), 0))
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())
}

// Records that are whole and don't fit together are damage, and so are those of another format, which says how to move.
func TestRecordsThatDoNotFitAreRefused(t *testing.T) {
	lamp := &objectVersion{name: "lamp", created: 2, rev: 2, record: 7, data: []byte("{}")}
	item := store.ReplicaItem{Key: "k", Value: []byte("v")}
	for says, values := range map[string]map[recordID][]byte{
		"the record of the store as a whole is missing":                        {1: nil},
		"a status (record 8) belongs to no object, or is one of two":           {8: (&objectVersion{record: 9}).encodeStatus()},
		"Device lamp has a revision beyond the newest":                         {7: (&objectVersion{name: "lamp", rev: 99}).encodeObject("Device")},
		"Device /lamp is there twice":                                          {9: lamp.encodeObject("Device")},
		"k was reported by no node":                                            {9: encodeReported(5, item)},
		"node n1 reported k twice":                                             {10: encodeNode("n1", nil), 11: encodeReported(10, item), 12: encodeReported(10, item)},
		"of node n1, which has another one":                                    {10: encodeNode("n1", nil), 11: encodeNode("n1", nil)},
		"record 72057594037927945: of the unknown kind 77":                     {9: {77}},
		"record 72057594037927937: a record that can't be read":                {1: {recordState, formatVersion, 0, 0}},
		"is of another version of this program: its format is 5, this program": {1: {recordState, formatVersion + 1}},
	} {
		dir := filepath.Join(t.TempDir(), "log")
		j, err := journal.Open(journal.Options{Dir: dir})
		require.NoError(t, err)
		put := func(id recordID, value []byte) {
			require.NoError(t, j.Sync([]journal.RecordChange{{ID: journalID(id), Value: value}}))
		}
		put(1, storeState{identity: 1, rev: 9}.encode())
		put(7, lamp.encodeObject("Device"))
		for id, value := range values {
			put(id, value)
		}
		require.NoError(t, j.Close())
		_, err = Open(Options{Path: dir})
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, dir)
	}
}

// Records of a format to come may be of kinds that nobody knows here: they are not damaged.
func TestRecordsOfAnotherFormatDoNotPassForDamaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	for _, c := range []journal.RecordChange{{ID: journalID(2), Value: []byte{77}}, {ID: journalID(stateRecord), Value: []byte{recordState, formatVersion + 1, 1, 2, 3}}} {
		require.NoError(t, j.Sync([]journal.RecordChange{c}))
	}
	require.NoError(t, j.Close())
	for _, readOnly := range []bool{false, true} {
		_, err = Open(Options{Path: dir, ReadOnly: readOnly})
		require.ErrorContains(t, err, "its format is 5, this program reads 4")
		require.NotContains(t, err.Error(), "damaged")
	}
}

func FuzzRecords(f *testing.F) {
	lamp := &objectVersion{name: "lamp", created: 2, rev: 2, record: 2, status: packText([]byte("{}")), data: []byte("{}")}
	f.Add(storeState{1, 9}.encode(), lamp.encodeObject("Device"), lamp.encodeStatus())
	f.Add(storeState{1, 9}.encode(), encodeNode("n1", []byte("m")), encodeReported(2, store.ReplicaItem{Key: "k"}))
	f.Add(storeState{1, 9}.encode(), encodeLastDelete("Device", 7), []byte{})
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		l := newRecordLoader()
		for i, value := range [][]byte{a, b, c} {
			if l.record(recordID(i+1), value) != nil {
				return
			}
		}
		if l.join() != nil {
			return
		}
		for kind, table := range l.snap.tables {
			for _, e := range table.log {
				if e.rev > l.state.rev || table.get(e.namespace, e.name) != e {
					t.Fatalf("%s %+v", kind, e)
				}
			}
		}
	})
}
