package bolt

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
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
)

// damageEnv makes the test go through each byte of the file (all) or begin with that seed.
const damageEnv = "STORE_BOLT_TEST_DAMAGE"

// Whatever byte of a file is not what it was: the file is refused, by name, or all that was in it is there. bbolt has
// two heads, of the last commit and of the one before: where the newer one is damaged, all is as it was before
// the last commit. Nothing panics, and what opens can be written and is sound.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	before, now := makeFullFile(t, path)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	used := len(bytes.TrimRight(good, "\x00"))

	d := damageTrial{t: t, path: filepath.Join(t.TempDir(), "broken.db"), before: before, now: now}
	flip := func(at int, with byte) {
		bad := bytes.Clone(good)
		bad[at] ^= with
		d.try(bad, fmt.Sprintf("byte %d flipped with %#x", at, with))
	}
	if os.Getenv(damageEnv) == "all" {
		for at := range used {
			flip(at, 1<<(at%8))
		}
		t.Logf("of %d flips %d were refused, %d gave the commit before, %d made no difference", used, d.refused, d.older, d.same)
		return
	}
	seed, err := strconv.ParseUint(os.Getenv(damageEnv), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d", damageEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		flip(random.IntN(used), 1<<random.IntN(8))
		flip(random.IntN(64)+random.IntN(used/4096)*4096, byte(1+random.IntN(255))) // where pages say what they are
		bad := bytes.Clone(good)
		for at := random.IntN(used); at < used && random.IntN(64) > 0; at++ {
			bad[at] = byte(random.Uint32())
		}
		d.try(bad, "a stretch of bytes")
		d.try(good[:random.IntN(used)], "cut short")
	}
	t.Logf("%d were refused, %d gave the commit before, %d made no difference", d.refused, d.older, d.same)
}

// makeFullFile makes a file that has something of each sort, on pages of each sort, and says what was in it before the last commit,
// and then.
func makeFullFile(t *testing.T, path string) (before, now string) {
	t.Helper()
	s := openStore(t, Options{Path: path, Tombstones: 8})
	s.db.NoSync = true // here and below no power fails
	must := func(_ store.Object, err error) { require.NoError(t, err) }
	for i := range 120 {
		o := device(fmt.Sprint("lamp-", i), `{"n":`+fmt.Sprint(i)+`}`)
		if i%3 == 0 {
			o.Status = []byte(`{"power":"on"}`)
		}
		must(s.Create(ctx, o))
	}
	must(s.Create(ctx, device("long", `{"n":"`+strings.Repeat("long ", 2000)+`"}`)))
	for i := range 20 {
		must(s.Delete(ctx, device(fmt.Sprint("lamp-", 3*i), "").Key, 0))
	}
	for _, name := range []string{"a", "b"} {
		must(s.Create(ctx, store.Object{Key: store.Key{Kind: "DeviceModel", Name: name}, Data: []byte(`{}`)}))
	}
	for n := range 3 {
		c := store.NodeChange{Node: fmt.Sprint("node-", n), Meta: []byte("meta")}
		for i := range 60 {
			c.Put = append(c.Put, store.ReplicaItem{Key: fmt.Sprint("devices/lamp-", i, "/reported/power"), Value: []byte("on")})
		}
		require.NoError(t, s.Commit(ctx, []store.NodeChange{c}))
	}
	before = storeText(t, s)
	must(s.Update(ctx, device("lamp-7", `{"n":"last"}`), 0))
	now = storeText(t, s)
	require.NoError(t, s.Close())
	require.NotEqual(t, before, now)
	return before, now
}

// storeText is all that a store has, as text.
func storeText(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	snap := s.snap.Load()
	fmt.Fprintln(&b, snap.rev, s.identity)
	for _, kind := range []string{"Device", "DeviceModel"} {
		page, err := s.List(ctx, kind, store.ListOptions{})
		require.NoError(t, err)
		fmt.Fprintln(&b, kind, snap.table(kind).lastDelete, page)
	}
	fmt.Fprintln(&b, len(snap.tables))
	for r, err := range s.All(ctx) {
		require.NoError(t, err)
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// damageTrial tries what becomes of files.
type damageTrial struct {
	t                    *testing.T
	path, before, now    string
	refused, older, same int
}

func (d *damageTrial) try(bad []byte, how string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(d.path, bad, 0o600))
	s, err := Open(Options{Path: d.path})
	if err != nil {
		d.refused++
		require.ErrorContains(d.t, err, d.path, how)
		return
	}
	s.db.NoSync = true
	defer func() { require.NoError(d.t, s.Close()) }()
	switch storeText(d.t, s) {
	case d.now:
		d.same++
	case d.before:
		d.older++
	default:
		d.t.Fatalf("%s: it opened, and had something else", how)
	}
	_, err = s.Create(ctx, device("another", "{}"))
	require.NoError(d.t, err, how)
	require.NoError(d.t, s.Check(), how)
}

// What the tree says is missing is noticed, and so is what was written and can't be read for its name.
func TestUnreachableRecordsAreNoticed(t *testing.T) {
	for says, change := range map[string]func(kind *bbolt.Bucket) error{
		"122 of its records can be read, and it has 123": func(kind *bbolt.Bucket) error { return kind.Bucket(bucketData).Delete(objectKey("default", "long")) },
		`Device: "default\x00lamp-0u": damaged record`: func(kind *bbolt.Bucket) error {
			data := kind.Bucket(bucketData)
			record := bytes.Clone(data.Get(objectKey("default", "long")))
			return data.Put(objectKey("default", "lamp-0u"), record)
		},
	} {
		path := filepath.Join(t.TempDir(), "hub.db")
		s := openStore(t, Options{Path: path})
		s.db.NoSync = true
		for i := range 122 {
			_, err := s.Create(ctx, device(fmt.Sprint("lamp-", i), "{}"))
			require.NoError(t, err)
		}
		_, err := s.Create(ctx, device("long", "{}"))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		changeFile(t, path, func(tx *bbolt.Tx) error { return change(tx.Bucket(bucketKinds).Bucket([]byte("Device"))) })
		_, err = Open(Options{Path: path})
		require.ErrorContains(t, err, path+" is damaged: "+says)
	}
}
