// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// tenfoldTemplate makes $a ten times as long.
const tenfoldTemplate = `{{$a = replace "a" "aaaaaaaaaa" $a}}`

func TestFunctions(t *testing.T) {
	out, err := Expand([]string{
		`{{upper .name}}`, `{{lower "ÄB"}}`, `{{replace "1" "-one" .name}}`, `{{replace "" "." "abc"}}`, `{{getOrDefault .labels "a" "x"}}`,
		`{{index .labels "b"}}`, `{{if and (eq .name "n1") (not (ne .name "n1"))}}yes{{else}}no{{end}}`, "no {template}",
	}, map[string]any{"name": "n1", "labels": map[string]string{"b": "c"}}, "spec", "node n1")
	require.NoError(t, err)
	require.Equal(t, []string{"N1", "äb", "n-one", ".a.b.c.", "x", "c", "yes", "no {template}"}, out)
}

// Templates are a user's: whatever they are, expanding them ends soon and takes little memory.
func TestTemplatesAreBounded(t *testing.T) {
	ten := `{{$a := "aaaaaaaaaa"}}`
	long := strings.Repeat("x", maxTextLength)
	for name, c := range map[string]struct {
		texts  []string
		reason string
	}{
		"a value many times":       {[]string{strings.Repeat("{{.long}}", 2)}, "[0]: node n1: it becomes longer than 262144 bytes"},
		"a value on the way":       {[]string{ten + strings.Repeat(tenfoldTemplate, 5)}, "[0]: node n1: it becomes longer than 262144 bytes"},
		"a value that is no text":  {[]string{ten + strings.Repeat(tenfoldTemplate, 1000) + "{{if $a}}yes{{end}}"}, "[0]: node n1: it becomes longer than 262144 bytes"},
		"calls in calls":           {[]string{"{{" + strings.Repeat(`replace "" "aaaaaaaaaa" (`, 20) + `"a"` + strings.Repeat(")", 20) + "}}"}, "[0]: node n1: it becomes longer than 262144 bytes"},
		"values on the way":        {[]string{ten + strings.Repeat(tenfoldTemplate, 3) + strings.Repeat(`{{$b := upper $a}}`, 10_000)}, "[0]: node n1: the templates make more than 3145728 bytes together"},
		"texts together":           {slices.Repeat([]string{ten + strings.Repeat(tenfoldTemplate, 4) + "{{$a}}"}, 100), "node n1: the templates make more than 3145728 bytes together"},
		"texts that JSON escapes":  {slices.Repeat([]string{"{{.angles}}"}, 12), "spec: node n1: the templates make it 14400037 bytes long, and it may have 3145728"},
		"many texts":               {slices.Repeat([]string{"{{1}}"}, maxTexts+1), "[10000]: node n1: more than 10000 texts have templates"},
		"a long text":              {[]string{strings.Repeat("{{if true}}", 400_000) + strings.Repeat("{{end}}", 400_000)}, "[0]: node n1: a text with templates has 7200000 bytes"},
		"a deep expression":        {[]string{"{{" + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + "}}"}, "max expression depth exceeded"},
		"loops":                    {[]string{"{{range 1000000000}}{{end}}"}, "range and template are not supported"},
		"templates in themselves":  {[]string{`{{define "x"}}{{template "x"}}{{end}}{{template "x"}}`}, "define and block are not supported"},
		"functions of the library": {[]string{`{{printf "%1000000000d" 1}}`}, "the function printf is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Expand(c.texts, map[string]any{"long": long, "angles": strings.Repeat("<", 200_000)}, "spec", "node n1")
			require.ErrorContains(t, err, c.reason)
			require.Equal(t, resource.Invalid, resource.KindOf(err))
		})
	}
	deep := []string{strings.Repeat("{{if true}}", 14_000) + strings.Repeat("{{end}}", 14_000)}
	require.NoError(t, Check(deep, "spec"))
	_, err := Expand(deep, nil, "spec", "node n1")
	require.NoError(t, err)
	require.ErrorContains(t, Check([]string{"{{1}}" + long}, "spec"), "spec[0]: a text with templates has 262149 bytes", "before any node has it")
}
