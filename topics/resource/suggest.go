// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"
	"strings"
)

// NearestNames is the name that somebody may have meant who wrote another one, the first of those that are nearest; empty: none is near.
func NearestNames(written string, names []string) string {
	if slices.Contains(names, written) {
		return ""
	}
	best, least := "", 1+max(2, len(written)/4)
	if len(written) < 6 {
		least = 2 // of a short name two letters are much of it
	}
	for _, name := range names {
		if len(written) >= maxWholeWord {
			if least > 0 && strings.Contains(name, written) {
				best, least = name, 0 // models, of devicemodels
				continue
			}
			if least > 1 && strings.Contains(strings.ToLower(name), strings.ToLower(written)) {
				best, least = name, 1
				continue
			}
		}
		if max(len(name)-len(written), len(written)-len(name)) >= least {
			continue
		}
		if d := EditDistance(strings.ToLower(written), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// maxWholeWord is how many letters somebody has written of a name at least who left out the rest of it.
const maxWholeWord = 4

// DidYouMean is what the error about a name that doesn't exist ends with: ": did you mean lamp?", or nothing if no name is near.
func DidYouMean(written string, names []string) string {
	if near := NearestNames(written, names); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// EditDistance is the Damerau–Levenshtein distance: how many letters must be added, removed, changed or swapped with their
// neighbour.
func EditDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
