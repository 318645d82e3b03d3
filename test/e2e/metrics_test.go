// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

// What the programs expose is what docs/metrics.md lists, with the same kinds, and
// named as Prometheus asks.
func TestThePageListsWhatThereIs(t *testing.T) {
	t.Parallel()
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, w.Start(t.Context(), "hub"))
	require.NoError(t, w.Start(t.Context(), "core"))
	page := listedMetrics(t)
	for program, address := range map[string]string{"hub": w.Hub.HTTP, "core": w.Node("n1").HTTP} {
		text, err := harness.Call(t.Context(), "GET", "http://"+address+"/metrics", nil)
		require.NoError(t, err)
		problems, err := promlint.New(strings.NewReader(string(text))).Lint()
		require.NoError(t, err)
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "edgebus_") {
				t.Errorf("%s: %s: %s", program, p.Metric, p.Text)
			}
		}
		for _, m := range labelValue.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains([]string{"version", "goversion", "le", "quantile"}, m[1]) {
				require.Regexp(t, "^[a-z0-9]+(_[a-z0-9]+)*$", m[2], "%s: the label %s: values are in one style", program, m[1])
			}
		}
		require.True(t, strings.HasSuffix(openMetrics(t, address), "# EOF\n"), "OpenMetrics, to who asks for it")
		require.Equal(t, page[program], exposedMetrics(string(text)), "the %s against docs/metrics.md: have you described in configs/deploy/monitoring.yaml what you added?", program)
	}
}

var labelValue = regexp.MustCompile(`(?m)[{,]([a-z_]+)="([^"]*)"`)

func openMetrics(t *testing.T, address string) string {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Contains(t, response.Header.Get("Content-Type"), "application/openmetrics-text")
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(text)
}

var typeLine = regexp.MustCompile(`(?m)^# TYPE (edgebus_\S+) (\S+)$`)

// exposedMetrics are our metrics with their kinds.
func exposedMetrics(text string) (all []string) {
	for _, m := range typeLine.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1]+" "+m[2])
	}
	sort.Strings(all)
	return all
}

var tableRow = regexp.MustCompile("(?m)^\\| `(edgebus_[a-z0-9_]+)(?:\\{[^`]*)?` \\| (counter|gauge|histogram) \\| (both|hub|core) \\|")

// listedMetrics are the metrics of the page, by program.
func listedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	require.NoError(t, err)
	all := map[string][]string{}
	for _, m := range tableRow.FindAllStringSubmatch(string(text), -1) {
		for _, program := range []string{"hub", "core"} {
			if m[3] == program || m[3] == "both" {
				all[program] = append(all[program], m[1]+" "+m[2])
			}
		}
	}
	for _, list := range all {
		sort.Strings(list)
	}
	return all
}
