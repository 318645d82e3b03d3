// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	takeoverEnv     = "EDGEBUS_TEST_TAKEOVER" // the directory of a process that is killed while it takes over
	takeoverDevices = 300
)

// copyToTakeOver makes a copy of a hub's log with Devices and a Secret.
func copyToTakeOver(t *testing.T) (dir string, identity uint32, rev uint64) {
	dir = dirWithSecrets(t, "password")
	withHub(t, dir, func(st *disk.Store) {
		for n := range takeoverDevices {
			_, err := st.Create(t.Context(), store.Object{
				Key:  store.Key{Kind: "Device", Namespace: "default", Name: fmt.Sprint("d", n)},
				Data: []byte(`{"kind":"Device","metadata":{"name":"d"},"desiredMeta":{"a":{"ver":4,"ts":5,"origin":"ann"}}}`),
			})
			require.NoError(t, err)
		}
		identity = st.Identity()
		_, rev = st.Counts()
	})
	records, err := OpenLog(dir, zerolog.Nop(), nil, nil)
	require.NoError(t, err)
	require.NoError(t, journal.CopyIn(records).Apply(journal.Origin{Log: 7, At: 5, Whole: 5}))
	require.NoError(t, records.Close())
	return dir, identity, rev
}

// isCopy reports whether a directory is a copy that no hub starts on.
func isCopy(t *testing.T, dir string) bool {
	records, err := OpenLog(dir, zerolog.Nop(), nil, nil)
	require.NoError(t, err)
	refused := refuseCopy(records)
	require.NoError(t, records.Close())
	return refused != nil
}

func takeOverIn(dir string) (code int, said string) {
	var out bytes.Buffer
	code, _ = Program().Main([]string{"takeover", "--data-dir", dir}, &out, &out)
	return code, out.String()
}

// requireTakenOver checks that a hub can go on in a directory, whatever was stored by takeovers that were killed.
func requireTakenOver(t *testing.T, dir string, identity uint32, rev uint64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, backup.StampFile))
	require.NoError(t, err)
	stamp, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	require.NoError(t, err)
	replaced, err := ReadReplaced(dir)
	require.NoError(t, err)
	require.Contains(t, replaced, resource.HubID(identity).String())
	withHub(t, dir, func(st *disk.Store) {
		require.NotEqual(t, identity, st.Identity())
		require.NotContains(t, replaced, resource.HubID(st.Identity()).String(), "a hub that replaces itself")
		_, now := st.Counts()
		require.Greater(t, now, rev|stamp<<32)
		page, err := st.List(t.Context(), "Device", store.ListOptions{})
		require.NoError(t, err)
		require.Len(t, page.Items, takeoverDevices)
		for _, o := range page.Items {
			var d resource.Device
			require.NoError(t, json.Unmarshal(o.Data, &d))
			require.Equal(t, resource.DesiredMeta{Ver: stamp<<32 | 4, TS: 5, Origin: "ann"}, d.DesiredMeta["a"], o.Name)
		}
	})
	var out bytes.Buffer
	code, _ := Program().Main([]string{"check", dir}, &out, &out)
	require.Zero(t, code, out.String())
	code, said := takeOverIn(dir)
	require.NotZero(t, code)
	require.Contains(t, said, "is the data directory of a hub, and no copy: start it as it is")
}

// A takeover that is killed is repeated: until it is whole no hub starts on the copy, and then nothing tells that it was killed.
func TestATakeoverThatIsKilledAnywhereIsRepeated(t *testing.T) {
	if dir := os.Getenv(takeoverEnv); dir != "" {
		code, said := takeOverIn(dir)
		fmt.Print(said)
		os.Exit(code)
	}
	made, identity, rev := copyToTakeOver(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))

	// run takes over in another process, and kills it some time after its first change.
	run := func(dir string, after time.Duration) (took time.Duration) {
		stamp := filepath.Join(dir, backup.StampFile)
		before, _ := os.ReadFile(stamp)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), takeoverEnv+"="+dir, "GORACE=atexit_sleep_ms=0") // the race detector's second at the end is no part of it
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for poll := time.NewTicker(time.Millisecond); ; <-poll.C {
			gone := len(ended) > 0
			if text, _ := os.ReadFile(stamp); !bytes.Equal(text, before) {
				break
			}
			require.False(t, gone, "it ended before it began")
		}
		began := time.Now()
		if after > 0 {
			time.AfterFunc(after-1, func() { _ = cmd.Process.Kill() })
		}
		if err := <-ended; after == 0 {
			require.NoError(t, err, out.String())
		}
		return time.Since(began)
	}
	copied := func() string {
		dir := filepath.Join(t.TempDir(), "hub")
		require.NoError(t, os.CopyFS(dir, os.DirFS(made)))
		require.NoError(t, os.Chmod(filepath.Join(dir, seal.FileName), 0o600)) // which CopyFS opens to others
		return dir
	}
	whole := copied()
	took := run(whole, 0)
	requireTakenOver(t, whole, identity, rev)

	const kills = 10
	amid := 0
	for n := range kills {
		dir := copied()
		after := time.Duration(1) // the first of them at once, however short it is
		if n > 0 {
			after += (took*time.Duration(n) + time.Duration(rnd.Int64N(int64(took)))) / kills
		}
		run(dir, after)
		if !isCopy(t, dir) { // it was whole just before
			requireTakenOver(t, dir, identity, rev)
			continue
		}
		amid++
		run(dir, 1+time.Duration(rnd.Int64N(int64(took)))) // and once more
		if isCopy(t, dir) {
			code, said := takeOverIn(dir)
			require.Zero(t, code, said)
		}
		requireTakenOver(t, dir, identity, rev)
	}
	t.Log(amid, "of", kills, "were killed amid it, which takes", took)
	require.Positive(t, amid)
}
