// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName     = regexp.MustCompile("`(Test\\w+(?:/[a-z0-9-]+)?)`")
)

// listTests are the names of all tests of the repository, those of scripts with the script's.
func listTests(t *testing.T, root string) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case strings.HasSuffix(path, filepath.FromSlash("interop/devices/testdata/"+d.Name())) && strings.HasSuffix(path, ".txtar"):
			tests["TestDevices/"+strings.TrimSuffix(d.Name(), ".txtar")] = true
		case strings.HasSuffix(path, ".txtar"):
			tests["TestScripts/"+strings.TrimSuffix(d.Name(), ".txtar")] = true
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			for _, found := range testFunction.FindAllSubmatch(text, -1) {
				tests[string(found[1])] = true
			}
			return err
		}
		return nil
	}))
	return tests
}

// unknownTests are the tests that a text names and that there aren't.
func unknownTests(text []byte, tests map[string]bool) (unknown []string) {
	for _, found := range testName.FindAllSubmatch(text, -1) {
		name := string(found[1])
		if function, _, _ := strings.Cut(name, "/"); !tests[name] && (!tests[function] || function == "TestScripts" || function == "TestDevices") {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// A document that says which test shows what it promises names one that there is.
func TestEveryTestThatADocumentNamesExists(t *testing.T) {
	tests := listTests(t, repositoryRoot(t))
	pages, err := filepath.Glob(filepath.Join(repositoryRoot(t), "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		require.Empty(t, unknownTests(text, tests), "%s names tests that there aren't", filepath.Base(page))
	}
}

// emptyCells says which cells of the page's first table promise nothing: a cell has a test, or says why it is not reachable.
func emptyCells(page []byte) (empty []string, cells int) {
	var columns []string
	for line := range bytes.Lines(page) {
		row := strings.Split(strings.Trim(strings.TrimSpace(string(line)), "|"), "|")
		switch {
		case !bytes.HasPrefix(line, []byte("|")):
			if columns != nil {
				return empty, cells
			}
			continue
		case columns == nil:
			columns = row
			continue
		case strings.HasPrefix(row[0], "---"):
			continue
		}
		for i, cell := range row[1:] {
			cells++
			if !testName.MatchString(cell) && !strings.Contains(cell, "not reachable: ") {
				empty = append(empty, fmt.Sprintf("%s, %s", strings.TrimSpace(row[0]), strings.TrimSpace(columns[i+1])))
			}
		}
	}
	return empty, cells
}

// The table of attackers and targets is whole.
func TestEveryCellOfTheThreatsHasATestOrAReason(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repositoryRoot(t), "docs", "threats.md"))
	require.NoError(t, err)
	empty, cells := emptyCells(page)
	require.Empty(t, empty)
	require.Equal(t, 8*6, cells, "attackers × targets")
}

func TestACellWithoutATestIsFound(t *testing.T) {
	page := []byte("# x\n\n| who | writes | files |\n|---|---|---|\n| a | `TestA` | not reachable: none |\n| b | nothing | `TestScripts/b-c` |\n\n| another | table |\n|---|---|\n| c | d |\n")
	empty, cells := emptyCells(page)
	require.Equal(t, []string{"b, writes"}, empty)
	require.Equal(t, 4, cells)
	tests := map[string]bool{"TestA": true}
	require.Equal(t, []string{"TestScripts/b-c"}, unknownTests(page, tests))
	tests["TestScripts/b-c"] = true
	require.Empty(t, unknownTests(page, tests))
}
