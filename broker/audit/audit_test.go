// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/audit"
)

// openLog makes a log, and what runs it until the test has added all its entries.
func openLog(t testing.TB, o audit.Options) (log *audit.Log, run func()) {
	t.Helper()
	o.Log = zerolog.Nop()
	log, err := audit.New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	return log, func() {
		t.Helper()
		stop() // what waits is written all the same
		require.NoError(t, log.Run(ctx))
	}
}

func readEntries(t *testing.T, file string) (all []audit.Entry) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e audit.Entry
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		all = append(all, e)
	}
	return all
}

func TestEntriesAreLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	log, run := openLog(t, audit.Options{File: file, Size: 1, Files: 1, Now: func() time.Time { return now }})
	e := audit.Entry{
		User: "ann", Roles: "operator", Client: "c1", Remote: "192.0.2.1:4711", Via: audit.MQTT, Action: audit.Publish,
		Object: "v1/nodes/n1/devices/lamp/desired/power", Answer: "Invalid", Reason: "more\nthan one line",
	}
	log.Add(e)
	log.Add(audit.Entry{Via: audit.HTTP, Action: "create", Client: strings.Repeat("x", 5000), Answer: audit.OK})
	run()
	e.Time = now
	got := readEntries(t, file)
	require.Len(t, got, 2)
	require.Equal(t, e, got[0])
	require.Less(t, len(got[1].Client), 1100, "texts that clients choose are bounded")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestAFullQueueDelaysNobody adds more than the queue takes while nothing is written.
func TestAFullQueueDelaysNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, run := openLog(t, audit.Options{File: file, Size: 1, Files: 1, Queue: 12 * 300})
	r := prometheus.NewRegistry()
	require.NoError(t, log.Register(r))
	for range 25 {
		log.Add(audit.Entry{Via: audit.Hub, Action: audit.Publish, Answer: audit.OK})
	}
	log.Add(audit.Entry{User: "ann", Roles: "operator", Action: audit.Publish, Answer: audit.OK})
	run()
	all := readEntries(t, file)
	require.Len(t, all, 6+1+1, "one source fills half of the queue; then comes what has room, and the rest as one line")
	require.Equal(t, "ann", all[6].User)
	require.EqualValues(t, 25-6, all[7].Count)
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP edgebus_audit_entries_total Entries written to the audit log.
# TYPE edgebus_audit_entries_total counter
edgebus_audit_entries_total 8
# HELP edgebus_audit_lost_entries_total Entries that were not written, because the file could not be written.
# TYPE edgebus_audit_lost_entries_total counter
edgebus_audit_lost_entries_total 0
# HELP edgebus_audit_summed_entries_total Entries that were summed into one line a minute, because their user or address had too many.
# TYPE edgebus_audit_summed_entries_total counter
edgebus_audit_summed_entries_total 19
`)))
}

// refusalOf is one of a user's, each on another topic from another client.
func refusalOf(user string, n int) audit.Entry {
	return audit.Entry{
		User: user, Roles: "mapper", Client: fmt.Sprint("c", n), Remote: fmt.Sprint("192.0.2.1:", n), Via: audit.MQTT,
		Action: audit.Publish, Object: fmt.Sprint("v1/nodes/n1/topic/", n), Answer: "Forbidden", Reason: "mapper may not publish here",
	}
}

func TestRefusalsOfOneUserAreSummedWithCountAndTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	now := began
	log, run := openLog(t, audit.Options{File: file, Size: 1, Files: 1, Now: func() time.Time { return now }})
	log.Add(audit.Entry{User: "ann", Roles: "operator", Via: audit.HTTP, Action: "delete", Object: "/tokens/bob", Answer: audit.OK})
	const n = 100_000
	for i := range n {
		now = now.Add(50 * time.Microsecond)
		log.Add(refusalOf("mallory", i))
	}
	log.Add(refusalOf("ann", 1))
	log.Add(audit.Entry{User: "bob", Roles: "viewer", Via: audit.MQTT, Action: audit.Connect, Answer: audit.OK})
	run()
	all := readEntries(t, file)
	require.Less(t, len(all), 100)
	last := all[len(all)-1]
	require.Equal(t, "mallory", last.User)
	require.Equal(t, now, last.Time)
	require.Equal(t, fmt.Sprint("v1/nodes/n1/topic/", n-1), last.Object, "the last of them is shown")
	lines := 0
	for _, e := range all[:len(all)-1] {
		if e.User == "mallory" {
			lines++
		}
	}
	require.EqualValues(t, n, int64(lines)+last.Count, "each is a line, or counted")
	require.Equal(t, began.Add(time.Duration(lines+1)*50*time.Microsecond), last.Since)
	for _, user := range []string{"ann", "bob"} {
		require.True(t, slices.ContainsFunc(all, func(e audit.Entry) bool { return e.User == user }), "what %s did has its line", user)
	}
}

// TestNobodyPushesTheOthersOutOfTheLog has each kind of attacker fill a small log for a day.
func TestNobodyPushesTheOthersOutOfTheLog(t *testing.T) {
	for name, attack := range map[string]func(n int) audit.Entry{
		"refusals of a user": func(n int) audit.Entry { return refusalOf("mallory", n) },
		"retained messages of a mapper": func(n int) audit.Entry {
			e := refusalOf("mallory", n)
			e.Answer, e.Reason = audit.OK, ""
			return e
		},
		"sign-ins with crafted names from one network": func(n int) audit.Entry {
			return audit.Entry{
				User: strings.Repeat("\x01", 2000), Client: fmt.Sprint(n, strings.Repeat("<", 2000)), Remote: fmt.Sprintf("[2001:db8::%x]:1", n%60000),
				Via: audit.MQTT, Action: audit.Connect, Answer: "bad user name or password",
			}
		},
		"sign-ins from everywhere": func(n int) audit.Entry {
			return audit.Entry{
				User: "root", Client: fmt.Sprint(n), Remote: fmt.Sprintf("10.%d.%d.%d:1", n>>16&255, n>>8&255, n&255),
				Via: audit.MQTT, Action: audit.Connect, Answer: "bad user name or password",
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
			log, run := openLog(t, audit.Options{File: filepath.Join(dir, "audit.log"), Size: 1, Files: 1, Now: func() time.Time { return now }})
			log.Add(audit.Entry{User: "ann", Roles: "operator", Via: audit.HTTP, Action: "delete", Object: "/tokens/bob", Answer: audit.OK})
			const n = 200_000
			for i := range n {
				now = now.Add(24 * time.Hour / n)
				log.Add(attack(i))
			}
			run()
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			require.Len(t, files, 1, "it fills no file of one MiB, of two")
			require.Equal(t, "ann", readEntries(t, files[0])[0].User)
		})
	}
}

// TestLongTextsCostLittle fails if an entry costs more than its length: texts are cut before they wait, and what looks like
// tokens is found in one pass.
func TestLongTextsCostLittle(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, run := openLog(t, audit.Options{File: file, Size: 100, Files: 1})
	crafted := strings.Repeat("ebt_aaaaaaaaaaaaa ", 65000/18)
	before := new(runtime.MemStats)
	runtime.ReadMemStats(before)
	for i := range 3000 {
		log.Add(audit.Entry{User: strings.Clone(crafted), Client: strings.Clone(crafted), Remote: fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), Action: audit.Connect, Answer: "no"})
	}
	runtime.GC()
	after := new(runtime.MemStats)
	runtime.ReadMemStats(after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(16<<20))
	run()
	for _, e := range readEntries(t, file) {
		require.NotContains(t, e.User, "ebt_aaaaaaaaaaaaa")
	}
}

func TestFilesRotate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "audit.log")
	log, run := openLog(t, audit.Options{File: file, Size: 1, Files: 1000, Queue: 32 << 20})
	const n = 15_000
	for range n {
		log.Add(audit.Entry{Roles: "operator", Action: audit.Publish, Object: strings.Repeat("o", 150), Answer: audit.OK})
	}
	run()
	files, err := filepath.Glob(filepath.Join(dir, "audit*.log"))
	require.NoError(t, err)
	require.Greater(t, len(files), 2)
	sum := 0
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(1<<20))
		sum += len(readEntries(t, f))
	}
	require.Equal(t, n, sum, "a rotation loses no line")
}

func TestAFileThatCannotBeWritten(t *testing.T) {
	_, err := audit.New(audit.Options{File: filepath.Join(t.TempDir(), "missing", "audit.log")})
	require.ErrorContains(t, err, "audit.file")
	none, err := audit.New(audit.Options{})
	require.NoError(t, err)
	none.Add(audit.Entry{}) // no log is no error
	require.NoError(t, none.Register(prometheus.NewRegistry()))
}

func BenchmarkAdd(b *testing.B) {
	log, _ := openLog(b, audit.Options{File: filepath.Join(b.TempDir(), "audit.log"), Size: 64, Files: 1})
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- log.Run(ctx) }()
	b.ReportAllocs()
	for b.Loop() {
		log.Add(audit.Entry{User: "ann", Roles: "operator", Client: "c1", Via: audit.MQTT, Action: audit.Publish, Object: "v1/nodes/n1/devices/lamp/desired/power", Answer: audit.OK})
	}
	stop()
	require.NoError(b, <-ended)
}
