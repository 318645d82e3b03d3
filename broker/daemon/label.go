// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"unicode"
)

// Label is a text as the value of a metric's label: in lower case, with underscores between the words, without what follows a colon.
func Label(text string) string {
	text, _, _ = strings.Cut(text, ":")
	var b strings.Builder
	apart, lower := false, false
	for _, r := range text {
		switch {
		case r == '\'':
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			apart, lower = true, false
		default:
			if (apart || unicode.IsUpper(r) && lower) && b.Len() > 0 {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
			apart, lower = false, unicode.IsLower(r)
		}
	}
	return b.String()
}
