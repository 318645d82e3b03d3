// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesOfOneWordAreFound(t *testing.T) {
	for name, word := range map[string]string{"along": "along", "Must": "must", "URL": "url", "v2": "v", "sameLabels": "", "HTTPServer": "", "max_size": ""} {
		got, single := oneWord(name)
		require.Equal(t, word, got, name)
		require.Equal(t, word != "", single, name)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\ntype along int\nvar _, gone = 1, 2\nfunc (along) same() {}\nfunc main() {}\nfunc TestThis() { heard := 1; _ = heard }\n", 0)
	require.NoError(t, err)
	var names []string
	for _, id := range packageLevel(file) {
		names = append(names, id.Name)
	}
	require.Equal(t, []string{"along", "gone"}, names)
}

func TestVocabulariesHaveWordsTheirPluralsAndReasons(t *testing.T) {
	known, exceptions, err := parseWords("# Go: x\nreader policy box\n\n# Exceptions: a reason each\nan animal: rig\n")
	require.NoError(t, err)
	for _, word := range []string{"reader", "readers", "policies", "boxes"} {
		require.True(t, isKnown(known, word), word)
	}
	for _, word := range []string{"along", "polic"} {
		require.False(t, isKnown(known, word), word)
	}
	require.True(t, exceptions["rig"])
	_, _, err = parseWords("# Exceptions: a reason each\nrig\n")
	require.ErrorContains(t, err, "words.txt:2")
	require.Equal(t, []string{"value", "in", "force"}, glossaryWords("| value in force | what counts |\n"))
}
