// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	suiteHabit   = regexp.MustCompile(`\b(Habit\w+)\s+DeviceHabit = "([^"]+)"`)
	suiteTest    = regexp.MustCompile(`(?m)^\t\t"([a-z ]+)":\s+test\w+,$`)
	missingHabit = regexp.MustCompile(`drivertest\.(Habit\w+):\s+"`)
	anyTestName  = regexp.MustCompile("`(Test\\w+)(?:/([a-z0-9_-]+))?`")
)

const habitsTest = "TestTheHabitsOfAllProtocols"

// deviceSources are the texts that docs/devices.md speaks of.
type deviceSources struct {
	habits    map[string]string // the suite's habits: what they are called in the page, and in Go
	driver    map[string]bool   // the tests of drivertest.Run
	tests     map[string]string // of each protocol
	discovery string
	scripts   map[string]bool
}

func readTexts(t *testing.T, root, suffix string) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, suffix) {
			var text []byte
			text, err = os.ReadFile(path)
			all.Write(text)
		}
		return err
	}))
	return all.String()
}

func readDeviceSources(t *testing.T, protocols []string) deviceSources {
	t.Helper()
	mappers := filepath.Join(repositoryRoot(t), "mappers")
	s := deviceSources{map[string]string{}, map[string]bool{}, map[string]string{}, "", map[string]bool{}}
	for _, found := range suiteHabit.FindAllStringSubmatch(readTexts(t, filepath.Join(mappers, "drivertest"), "habits.go"), -1) {
		s.habits[found[2]] = found[1]
	}
	for _, found := range suiteTest.FindAllStringSubmatch(readTexts(t, filepath.Join(mappers, "drivertest"), "drivertest.go"), -1) {
		s.driver[strings.ReplaceAll(found[1], " ", "_")] = true
	}
	for _, protocol := range protocols {
		s.tests[protocol] = readTexts(t, filepath.Join(mappers, protocol), "_test.go")
	}
	s.discovery = readTexts(t, filepath.Join(repositoryRoot(t), "edge", "discovery"), "_test.go")
	scripts, err := filepath.Glob(filepath.Join(repositoryRoot(t), "test", "interop", "devices", "testdata", "*.txtar"))
	require.NoError(t, err)
	for _, script := range scripts {
		s.scripts[strings.TrimSuffix(filepath.Base(script), ".txtar")] = true
	}
	return s
}

// readTables are the cells of a page's tables, row by row, without the lines below the headers.
func readTables(page string) (tables [][][]string) {
	inTable := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inTable = false
			continue
		}
		if !inTable {
			tables = append(tables, nil)
		}
		inTable = true
		if strings.HasPrefix(line, "|---") {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		tables[len(tables)-1] = append(tables[len(tables)-1], row)
	}
	return tables
}

// habitProblems says what is wrong with the table of habits: a cell names the suite's test, or says why the driver's rig leaves it out.
func (s deviceSources) habitProblems(table [][]string) (problems []string) {
	for _, row := range table[1:] {
		habit, _, _ := strings.Cut(row[0], ":")
		for i, cell := range row[1:] {
			protocol := table[0][i+1]
			left := false
			for _, found := range missingHabit.FindAllStringSubmatch(s.tests[protocol], -1) {
				left = left || found[1] == s.habits[habit]
			}
			tested := cell == "`"+habitsTest+"/"+strings.ReplaceAll(habit, " ", "_")+"`" && strings.Contains(s.tests[protocol], "func "+habitsTest+"(")
			if left == tested || left && len(cell) < len("– why it is") || s.habits[habit] == "" {
				problems = append(problems, fmt.Sprintf("%s, %s: %s", habit, protocol, cell))
			}
		}
	}
	return problems
}

// featureProblems says what is wrong with the table of what a protocol can do: a cell names tests that there are, or says why there is none.
func (s deviceSources) featureProblems(table [][]string) (problems []string) {
	for _, row := range table[1:] {
		for i, cell := range row[1:] {
			names := anyTestName.FindAllStringSubmatch(cell, -1)
			bad := len(names) == 0 && (!strings.HasPrefix(cell, "– ") || len(cell) < len("– why it is"))
			for _, name := range names {
				declared := "func " + name[1] + "("
				known := strings.Contains(s.tests[row[0]], declared) || table[0][i+1] == "discovery" && strings.Contains(s.discovery, declared)
				switch name[1] {
				case "TestDriver":
					known = known && s.driver[name[2]]
				case habitsTest:
					known = known && s.habits[strings.ReplaceAll(name[2], "_", " ")] != ""
				case "TestDevices":
					known = s.scripts[name[2]]
				}
				bad = bad || !known
			}
			if bad {
				problems = append(problems, fmt.Sprintf("%s, %s: %s", row[0], table[0][i+1], cell))
			}
		}
	}
	return problems
}

func TestEveryCellOfTheDevicesHasATestOrAReason(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repositoryRoot(t), "docs", "devices.md"))
	require.NoError(t, err)
	tables := readTables(string(text))
	require.Len(t, tables, 3) // the first one is of test/interop/devices
	habits, features := tables[1], tables[2]
	s := readDeviceSources(t, habits[0][1:])
	require.NotEmpty(t, s.habits)
	require.Len(t, habits, len(s.habits)+1, "a row of each habit")
	require.Len(t, features, len(habits[0]), "a row of each protocol")
	require.Len(t, features[0], 1+9, "what a protocol can do")
	require.Empty(t, s.habitProblems(habits))
	require.Empty(t, s.featureProblems(features))

	habits[1][1] = "– it is never so"
	features[1][1], features[1][2] = "`TestDriver/sings`", ""
	require.Len(t, s.habitProblems(habits), 1, "a habit that is not left out")
	require.Len(t, s.featureProblems(features), 2, "a test that there isn't, and an empty cell")
}
