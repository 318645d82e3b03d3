// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/require"
)

// What is in the tree is what the table makes.
func TestWhatIsMadeOfTheTableIsUpToDate(t *testing.T) {
	files, err := makeFiles(repositoryRoot)
	require.NoError(t, err)
	for path, text := range files {
		have, err := os.ReadFile(filepath.Join(repositoryRoot, path))
		require.NoError(t, err)
		require.Equal(t, string(text), string(have), "%s: make golden", path)
	}
	boardFiles, err := filepath.Glob(filepath.Join(repositoryRoot, "configs/deploy/grafana/*.json"))
	require.NoError(t, err)
	require.Len(t, boardFiles, len(boards), "a board that nobody makes")
}

// boardPanel is what a test needs of a panel, as it stands in a file.
type boardPanel struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
	Panels []boardPanel `json:"panels"`
}

var legendLabel = regexp.MustCompile(`{{ *(\w+) *}}`)

// A panel asks only for what there is, and has a place of its own.
func TestPanelsOfBoardsShowMetricsThatExist(t *testing.T) {
	listed, shown := listedMetrics(t), map[string]bool{}
	for _, name := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total"} { // of Prometheus' own collector
		listed[name] = []string{"instance"}
	}
	for _, b := range boards {
		text, err := os.ReadFile(filepath.Join(repositoryRoot, "configs/deploy/grafana", b.uid+".json"))
		require.NoError(t, err)
		var file struct{ Panels []boardPanel }
		require.NoError(t, json.Unmarshal(text, &file))
		places := map[[2]int]string{}
		var visit func(panels []boardPanel)
		visit = func(panels []boardPanel) {
			for _, p := range panels {
				where := b.uid + ": " + p.Title
				for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
					for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
						require.Less(t, x, gridWidth, where)
						require.Empty(t, places[[2]int{x, y}], where+" is on another panel")
						places[[2]int{x, y}] = p.Title
					}
				}
				require.Equal(t, p.Type == "row", len(p.Targets) == 0, where)
				for _, target := range p.Targets {
					require.Contains(t, target.Expr, chosenInstances, where)
					known := requireListed(t, listed, grafanaVariables.Replace(target.Expr), where)
					for _, label := range legendLabel.FindAllStringSubmatch(target.Legend, -1) {
						require.Contains(t, known, label[1], where)
					}
					for name := range listed {
						if strings.Contains(target.Expr, name+"{") {
							shown[name] = true
						}
					}
				}
				visit(p.Panels)
			}
		}
		visit(file.Panels)
	}
	for name := range listed {
		if !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			require.True(t, shown[name], "no board shows %s", name)
		}
	}
}

// grafanaVariables are what Grafana puts in before it asks Prometheus.
var grafanaVariables = strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")

// Grafana's own types take a board whole: a field that they don't know is an error.
func TestBoardsAreAsGrafanasSchemaWantsThem(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for _, b := range boards {
		text, err := os.ReadFile(filepath.Join(repositoryRoot, "configs/deploy/grafana", b.uid+".json"))
		require.NoError(t, err)
		var d dashboard.Dashboard
		require.Empty(t, problemsOf(d.UnmarshalJSONStrict(text)), b.uid)
		require.NoError(t, d.Validate(), b.uid)
		for _, mistake := range []string{`"tags"`, `"legendFormat"`, `"gridPos"`, `"reduceOptions"`} { // the check checks each level
			wrong := strings.Replace(string(text), mistake, `"misspelt"`, 1)
			require.NotEqual(t, string(text), wrong)
			require.NotEmpty(t, problemsOf(new(dashboard.Dashboard).UnmarshalJSONStrict([]byte(wrong))), mistake)
		}
	}
}

// problemsOf are the errors that the types found; the SDK returns an empty list of them as an error, too.
func problemsOf(err error) (all []string) {
	var list cog.BuildErrors
	if errors.As(err, &list) {
		for _, one := range list {
			all = append(all, one.Error())
		}
		return all
	}
	if err != nil {
		all = append(all, err.Error())
	}
	return all
}
