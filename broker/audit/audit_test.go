package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/audit"
)

// open makes a log, and what runs it until the test has added all its entries.
func open(t testing.TB, o audit.Options) (log *audit.Log, run func()) {
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

func entries(t *testing.T, file string) (all []audit.Entry) {
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
	log, run := open(t, audit.Options{File: file, Size: 1, Files: 1, Now: func() time.Time { return now }})
	e := audit.Entry{
		User: "ann", Roles: "operator", Client: "c1", Remote: "192.0.2.1:4711", Via: audit.MQTT, Action: audit.Publish,
		Object: "v1/nodes/n1/devices/lamp/desired/power", Answer: "Invalid", Reason: "more\nthan one line",
	}
	log.Add(e)
	log.Add(audit.Entry{Via: audit.HTTP, Action: "create", Client: strings.Repeat("x", 5000), Answer: audit.OK})
	run()
	e.Time = now
	got := entries(t, file)
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
	log, run := open(t, audit.Options{File: file, Size: 1, Files: 1, Queue: 10})
	r := prometheus.NewRegistry()
	require.NoError(t, log.Register(r))
	for range 25 {
		log.Add(audit.Entry{Action: audit.Publish, Answer: audit.OK})
	}
	run()
	require.Len(t, entries(t, file), 10)
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP edgebus_audit_entries_total Entries written to the audit log.
# TYPE edgebus_audit_entries_total counter
edgebus_audit_entries_total 10
# HELP edgebus_audit_lost_entries_total Entries that were not written, because the queue was full or the file could not be written.
# TYPE edgebus_audit_lost_entries_total counter
edgebus_audit_lost_entries_total 15
`)))
}

func TestFilesRotate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "audit.log")
	log, run := open(t, audit.Options{File: file, Size: 1, Files: 1000, Queue: 20_000})
	const n = 15_000
	for range n {
		log.Add(audit.Entry{Action: audit.Publish, Object: strings.Repeat("o", 150), Answer: audit.OK})
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
		sum += len(entries(t, f))
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
	log, _ := open(b, audit.Options{File: filepath.Join(b.TempDir(), "audit.log"), Size: 64, Files: 1})
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
