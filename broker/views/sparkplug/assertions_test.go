// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

var (
	assertionRow = regexp.MustCompile("(?m)^\\| `([A-Za-z0-9-]+)` \\| (.+) \\|$")
	codeWord     = regexp.MustCompile("`([A-Za-z0-9-]+)`")
	testName     = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
)

// The page names each assertion of the specification once, and those that it says are tested are.
func TestThePageHasEveryAssertion(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sparkplug.md")
	require.NoError(t, err)
	_, list, ok := strings.Cut(string(page), "## Assertions of the specification")
	require.True(t, ok)
	named := map[string]int{}
	for _, word := range codeWord.FindAllStringSubmatch(list, -1) {
		named[word[1]]++
	}
	all, err := os.ReadFile("testdata/assertions.list")
	require.NoError(t, err)
	ids := strings.Fields(string(all))
	require.Len(t, ids, 299)
	for _, id := range ids {
		require.Equal(t, 1, named[id], "%s is named once", id)
	}

	tests := testSources(t)
	strict := tests["stricthost_test.go"]
	rows := assertionRow.FindAllStringSubmatch(list, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		for _, name := range testName.FindAllStringSubmatch(row[2], -1) {
			found := false
			for _, source := range tests {
				found = found || strings.Contains(source, "func "+name[1]+"(t *testing.T)")
			}
			require.True(t, found, "%s: there is no test %s", row[1], name[1])
		}
		if row[2] == "`TestAHostKnowsTheTreeWhateverHappens`" {
			require.Contains(t, strict, `"`+row[1]+`"`, "the strict host doesn't hold messages against it")
		}
	}
	for _, id := range regexp.MustCompile(`"([a-z]+(-[A-Za-z0-9]+)+)"`).FindAllStringSubmatch(strict, -1) {
		require.Contains(t, ids, id[1], "the specification has no such assertion")
	}
}

func testSources(t *testing.T) map[string]string {
	t.Helper()
	tests := map[string]string{}
	for _, pattern := range []string{"*_test.go", "../runner/*_test.go", "../../../test/e2e/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			tests[filepath.Base(file)] = string(text)
		}
	}
	return tests
}

func TestNamesAreIDs(t *testing.T) {
	for _, name := range []string{"n1", "odd.name-1", "0"} {
		require.True(t, topics.ValidName(name))
		require.Empty(t, sparkplug.CheckID(name))
	}
	for _, name := range []string{"a/b", "a+", "#", "Lamp", ""} {
		require.False(t, topics.ValidName(name), name)
	}
}

func TestTheSessionNumberBeginsAtZeroAndWraps(t *testing.T) {
	r := newRig(t, Options{})
	for n, want := range map[uint64]string{1: "0", 2: "1", 256: "255", 257: "0"} {
		r.n = n
		r.connect()
		require.Equal(t, want, r.host.session)
	}
}
