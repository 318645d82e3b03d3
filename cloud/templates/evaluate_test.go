// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"
)

// evaluatedData is what the templates of the tests are over.
var evaluatedData = map[string]any{
	"id": "id-1", "empty": "", "shared": true, "no": false, "properties": map[string]string{"A": "a", "E": ""}, "metadata": map[string]any{"name": "n", "labels": map[string]string{"room": "hall"}},
}

var evaluatedTemplates = []string{
	`{{.id}}`, `a{{- .id -}} b`, `{{.properties.A}}`, `{{.properties.B}}`, `{{.metadata.labels.room}}`, `{{.nothing}}`, `{{.id.x}}`, `{{.metadata.labels}}`, `{{.}}`,
	`{{if .empty}}x{{else if .shared}}y{{else}}z{{end}}`, `{{with .metadata}}{{.name}}{{$.id}}{{end}}`, `{{with .empty}}x{{else}}{{.id}}{{end}}`, `{{with .empty}}x{{else with .id}}{{.}}{{end}}`,
	`{{$x := .id}}{{$x}}`, `{{$x := 1}}{{if true}}{{$x = 2}}{{$y := 3}}{{$x}}{{$y}}{{end}}{{$x}}`, `{{$m := .metadata}}{{$m.labels.room}}`, `{{with $x := .id}}{{$x}}{{end}}`,
	`{{.id | upper}}`, `{{.id | replace "1" "2" | upper}}`, `{{upper}}`, `{{upper 1}}`, `{{upper .id .id}}`, `{{upper .shared}}`, `{{replace "a" "b"}}`,
	`{{index .properties "A"}}`, `{{index .properties "B"}}`, `{{index .id "A"}}`, `{{getOrDefault .properties "B" "c"}}`, `{{"B" | getOrDefault .properties "A"}}`, `{{getOrDefault nil "A" "b"}}`,
	`{{and .empty .nothing}}`, `{{and .id .empty}}`, `{{or .empty .id}}`, `{{or .id .nothing}}`, `{{and}}`, `{{.id | and .shared}}`, `{{.id | or .empty}}`, `{{and 1 0}}`, `{{or 0 ""}}`,
	`{{not .empty}}`, `{{not}}`, `{{not 0}}`, `{{not 1.5}}`, `{{not .properties}}`, `{{not nil}}`,
	`{{eq .id "id-1"}}`, `{{eq .id "a" "id-1"}}`, `{{eq 1 1}}`, `{{eq 1 1.5}}`, `{{eq 1.5 1.5}}`, `{{eq .id 1}}`, `{{eq .shared true}}`, `{{eq .properties .properties}}`, `{{eq .id}}`, `{{ne .id "x"}}`, `{{ne 1 2 3}}`, `{{eq .id nil}}`,
	`{{1}}`, `{{-7}}`, `{{1.5}}`, `{{0x10}}`, `{{1e3}}`, `{{'a'}}`, `{{1_000}}`, `{{true}}`, `{{nil}}`, `{{"a\n"}}`, "{{`raw`}}", `{{1i}}`, `{{1.0}}`,
	`{{(.metadata).name}}`, `{{(index .properties "A")}}`, `{{(index .properties "A").x}}`, `{{.id "x"}}`, `{{"x" .id}}`, `{{1 | .id}}`, `{{/* comment */}}`, `{{$.metadata.name}}`, `{{$}}`, `{{print}}`, `{{ .id`, `{{end}}`, `{{foo .id}}`,
	`{{if}}x{{end}}`, `{{if .nothing}}x{{end}}`, `{{if and .shared (not .no)}}x{{end}}`, `{{$y}}`, `{{"a" | upper | lower}}`, `{{upper (lower "A")}}`, `{{if eq (index .properties "E") ""}}x{{end}}`,
}

// libraryResult is what text/template makes of a template, with the same functions.
func libraryResult(text string) (string, error) {
	functions := template.FuncMap{
		"upper":   func(text string) string { return strings.ToUpper(text) },
		"lower":   func(text string) string { return strings.ToLower(text) },
		"replace": func(old, by, text string) string { return strings.ReplaceAll(text, old, by) },
		"getOrDefault": func(m map[string]string, key, otherwise string) string {
			if v, ok := m[key]; ok {
				return v
			}
			return otherwise
		},
		"index": func(m map[string]string, key string) (string, error) {
			if v, ok := m[key]; ok {
				return v, nil
			}
			return "", template.ExecError{Err: nil}
		},
	}
	t, err := template.New("").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return "", err
	}
	if err := checkNode(t.Root); err != nil || len(t.Templates()) > 1 {
		return "", template.ExecError{}
	}
	var out strings.Builder
	err = t.Execute(&out, evaluatedData)
	return out.String(), err
}

func compareWithLibrary(t *testing.T, text string) {
	t.Helper()
	want, wantErr := libraryResult(text)
	got, err := Expand(text, evaluatedData, "spec", "")
	if wantErr != nil {
		require.Error(t, err, "%s: text/template says %v", text, wantErr)
		return
	}
	require.NoError(t, err, text)
	require.Equal(t, want, got, text)
}

func TestTemplatesAreExpandedAsTheLibraryDoes(t *testing.T) {
	for _, text := range evaluatedTemplates {
		compareWithLibrary(t, text)
	}
}

func FuzzTemplates(f *testing.F) {
	for _, text := range evaluatedTemplates {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.Contains(text, "{{") || len(text) > 1000 || strings.ToValidUTF8(text, "") != text {
			return
		}
		compareWithLibrary(t, text)
	})
}
