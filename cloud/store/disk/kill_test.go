// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

// killEnv makes the test binary the process that gets killed.
const killEnv = "STORE_BOLT_TEST_VICTIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(killEnv); path != "" {
		writeUntilKilled(path)
		return
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes until it is killed, and says each write only after it was acknowledged.
func writeUntilKilled(path string) {
	s, err := Open(Options{Path: path, Log: zerolog.Nop(), Tombstones: 20})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	for w := range 8 {
		go func() {
			for i := 1; ; i++ {
				name := fmt.Sprint("d", w)
				o := device(name, strconv.Itoa(i))
				if _, err := s.Update(ctx, o, 0); err != nil {
					_, _ = s.Create(ctx, o)
				}
				say("%s %d", name, i)
				scratch := fmt.Sprintf("scratch-%d-%d", w, i)
				_, _ = s.Create(ctx, device(scratch, "{}"))
				_, _ = s.Delete(ctx, device(scratch, "").Key, 0)
				_ = s.Commit(ctx, []store.NodeChange{{Node: name, Meta: []byte(strconv.Itoa(i)), Put: []store.ReplicaItem{{Key: "k", Value: []byte(strconv.Itoa(i))}}}})
				say("node-%s %d", name, i)
			}
		}()
	}
	select {}
}

// Killed at any moment, the file opens, is sound, and holds all that was acknowledged.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for round := range 8 {
		// Numbers begin again in each round, so look at this round's alone.
		said := killWriter(t, path, time.Duration(20+round*17)*time.Millisecond)
		s := openStore(t, Options{Path: path, Tombstones: 20})
		require.NoError(t, s.Check())
		for name, n := range said {
			require.GreaterOrEqual(t, readNumber(t, s, name), n, "%s of round %d", name, round)
		}
		require.NoError(t, s.Close())
	}
}

func readNumber(t *testing.T, s *Store, name string) int {
	t.Helper()
	var text []byte
	if node, ok := strings.CutPrefix(name, "node-"); ok {
		r, err := s.Load(ctx, node)
		require.NoError(t, err)
		require.Len(t, r.Items, 1)
		require.Equal(t, r.Meta, r.Items[0].Value, "one commit, all or nothing")
		text = r.Meta
	} else {
		o, err := s.Get(ctx, device(name, "").Key)
		require.NoError(t, err)
		text = o.Data
	}
	n, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	return n
}

// killWriter runs a writer, lets it write for a while after its first word, and kills it.
func killWriter(t *testing.T, path string, after time.Duration) map[string]int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killEnv+"="+path)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := map[string]int{}
	var timer *time.Timer
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if timer == nil {
			timer = time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		name, number, ok := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue // the last line may be cut
		}
		said[name] = max(said[name], n)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	require.NotEmpty(t, said)
	return said
}
