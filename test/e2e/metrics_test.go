package e2e

import (
	"os"
	"path/filepath"
	"regexp"
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
	page := listed(t)
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
		require.Equal(t, page[program], exposed(string(text)), "the %s against docs/metrics.md: have you described what you added?", program)
	}
}

var typeLine = regexp.MustCompile(`(?m)^# TYPE (edgebus_\S+) (\S+)$`)

// exposed are our metrics with their kinds.
func exposed(text string) (all []string) {
	for _, m := range typeLine.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1]+" "+m[2])
	}
	sort.Strings(all)
	return all
}

var tableRow = regexp.MustCompile("(?m)^\\| `(edgebus_[a-z0-9_]+)(?:\\{[^`]*)?` \\| (counter|gauge|histogram) \\| (both|hub|core) \\|")

// listed are the metrics of the page, by program.
func listed(t *testing.T) map[string][]string {
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
