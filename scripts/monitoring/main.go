// SPDX-License-Identifier: Apache-2.0

// Command monitoring makes of configs/deploy/monitoring.yaml what stands beside it: docs/metrics.md, the alert rules for Prometheus and the
// boards for Grafana. Its tests hold them against each other, and against Prometheus' and Grafana's own libraries; a test in test/e2e holds the
// page against what the programs expose.
//
// # Files, in reading order
//
//	table.go        the table; the page and the rules, which are made of it
//	boards.go       the boards: what to look at first is written here, the rest is made of the table
//	main.go         which files there are
//	alerts_test.go  each alert fires, and keeps quiet
//	boards_test.go  boards and page are as Grafana and Prometheus want them
//
// # Where to add
//
//   - a metric or an alert: configs/deploy/monitoring.yaml, and for an alert a test in prometheus/edgebus.rules.test.yaml. Then make golden.
//   - what one should see first: boards.go.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	files, err := makeFiles("../..")
	for path, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join("../..", path), text, 0o644) //nolint:gosec // G306: files of the source tree
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// makeFiles is what is made of the table, by path.
func makeFiles(root string) (map[string][]byte, error) {
	t, err := readTable(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"docs/metrics.md": []byte(t.page()),
		"configs/deploy/prometheus/edgebus.rules.yaml": []byte(t.rules()),
	}
	for _, b := range boards {
		if files["configs/deploy/grafana/"+b.uid+".json"], err = b.json(t); err != nil {
			return nil, err
		}
	}
	return files, nil
}
