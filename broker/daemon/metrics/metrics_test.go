// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

// scrapeMetrics is what a registry answers, but for the process's own figures.
func scrapeMetrics(t *testing.T, r Registry) (text string, lines []string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code)
	text = w.Body.String()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "edgebus_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return text, lines
}

func TestAGroupIsTakenOnceAnAnswer(t *testing.T) {
	taken := 0
	g := NewGroup("part", func() int { taken++; return taken })
	g.Gauge("size", "Size.", func(n int) float64 { return float64(n) })
	g.Counter("runs_total", "Runs.", func(n int) float64 { return float64(10 * n) })
	g.CounterBy("reason", "fails_total", "Fails.", func(n int) map[string]int64 { return map[string]int64{"disk": int64(n), "net": 0} })
	r := New("v1")
	r.MustRegister(g)
	taken = 0
	_, lines := scrapeMetrics(t, r)
	require.Subset(t, lines, []string{
		`edgebus_part_fails_total{reason="disk"} 1`, `edgebus_part_fails_total{reason="net"} 0`,
		`edgebus_part_runs_total 10`, `edgebus_part_size 1`,
	})
	require.Equal(t, 1, taken)
}

func TestCommits(t *testing.T) {
	r := New("v1")
	c := r.Commits()
	tree, sessions := c.ForStore("tree"), c.ForStore("sessions")
	tree(time.Millisecond, 3, nil)
	sessions(time.Second, 1, errors.New("no space left on device"))
	require.Equal(t, map[string]string{"sessions": "no space left on device"}, c.Failing())
	text, lines := scrapeMetrics(t, r)
	require.Subset(t, lines, []string{
		`edgebus_commit_failures_total{store="sessions"} 1`, `edgebus_commit_failures_total{store="tree"} 0`,
		`edgebus_commit_seconds_count{store="tree"} 1`, `edgebus_commit_writes_sum{store="tree"} 3`,
	})
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	sessions(time.Millisecond, 1, nil)
	require.Empty(t, c.Failing(), "it commits again")
	var damage error
	c.Watch("sessions", func() error { return damage })
	require.Empty(t, c.Damaged())
	damage = errors.New("1.log is damaged")
	sessions(time.Millisecond, 1, nil)
	require.Equal(t, map[string]string{"sessions": "1.log is damaged"}, c.Damaged())
	require.Empty(t, c.Failing())
}
