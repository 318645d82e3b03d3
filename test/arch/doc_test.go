// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadingOrdersAreWhole: a doc.go that lists the files or packages of its folder in reading order names all of them, and
// nothing that isn't there. A package of many files has such a list, and says where to add.
func TestReadingOrdersAreWhole(t *testing.T) {
	const many = 5 // files, without tests
	files := make(map[string]int)
	docs := make(map[string]string)
	visitSources(t, func(path string, text []byte) {
		if !strings.HasPrefix(path, "test/") && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "/testdata/") {
			files[filepath.Dir(path)]++
		}
		if filepath.Base(path) != "doc.go" {
			return
		}
		doc := string(text)
		docs[filepath.Dir(path)] = doc
		dir := filepath.Join(repositoryRoot(t), filepath.Dir(path))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		files, folders := docSection(doc, "# Files, in reading order"), docSection(doc, "# Packages, in reading order")
		if files != "" {
			for _, e := range entries {
				name := e.Name()
				if e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || name == "doc.go" {
					continue
				}
				require.True(t, namesFile(files, name), "%s doesn't name %s", path, name)
			}
			for _, name := range regexp.MustCompile(`[a-z0-9_*]+\.go`).FindAllString(files, -1) {
				there, err := filepath.Glob(filepath.Join(dir, name))
				require.NoError(t, err)
				require.NotEmpty(t, there, "%s names %s", path, name)
			}
		}
		if folders != "" {
			for _, e := range entries {
				if e.IsDir() && e.Name() != "testdata" {
					require.Regexp(t, `\b`+e.Name()+`\b`, folders, "%s", path)
				}
			}
		}
	})
	for dir, n := range files {
		for _, heading := range []string{"# Files, in reading order", "# Where to add"} {
			if n >= many && !strings.Contains(docs[dir], heading) {
				t.Errorf("%s has %d files: its doc.go needs the heading %q", dir, n, heading)
			}
		}
	}
}

// docSection is the part of a comment from a heading to the next one.
func docSection(doc, heading string) string {
	_, rest, found := strings.Cut(doc, heading)
	if !found {
		return ""
	}
	part, _, _ := strings.Cut(rest, "\n// # ")
	return part
}

// namesFile is whether a list names a file, perhaps by a pattern such as socket_*.go.
func namesFile(list, file string) bool {
	for _, pattern := range regexp.MustCompile(`[a-z0-9_*]+\.go`).FindAllString(list, -1) {
		if ok, err := filepath.Match(pattern, file); ok && err == nil {
			return true
		}
	}
	return false
}
