// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/templates"
	"github.com/edgebus/edgebus/topics/resource"
)

var creationTime = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

func candidateWithLabel(name string, age int, key, value string) OwnerCandidate {
	return NewOwnerCandidate(name, creationTime.Add(-time.Duration(age)*time.Hour), &resource.LabelSelector{MatchLabels: map[string]string{key: value}})
}

// The numbers are those of the points about owners in the document on fleets.
func TestTheOldestFleetThatMatchesGetsANode(t *testing.T) {
	x := NewSelectorIndex([]OwnerCandidate{
		candidateWithLabel("young", 1, "site", "a"), candidateWithLabel("old", 2, "site", "a"), candidateWithLabel("other", 3, "site", "b"),
		NewOwnerCandidate("none", creationTime, nil),
		NewOwnerCandidate("terms", creationTime, &resource.LabelSelector{MatchExpressions: []resource.LabelTerm{
			{Key: "line", Operator: "In", Values: []string{"1", "2"}}, {Key: "old", Operator: "DoesNotExist"},
		}}),
	})
	for name, c := range map[string]struct {
		owner  string
		labels map[string]string
		want   Assignment
	}{
		"11 no fleet matches":               {"", map[string]string{"site": "c"}, Assignment{}},
		"12 one matches":                    {"", map[string]string{"site": "b"}, Assignment{Owner: "Fleet/other", Fleet: "other"}},
		"13 and keeps it":                   {"Fleet/other", map[string]string{"site": "b"}, Assignment{Owner: "Fleet/other", Fleet: "other"}},
		"14 it matches no more":             {"Fleet/other", map[string]string{"site": "c"}, Assignment{}},
		"15 another one matches":            {"Fleet/old", map[string]string{"site": "b"}, Assignment{Owner: "Fleet/other", Fleet: "other"}},
		"16 it is paused":                   {"Fleet/other", map[string]string{"site": "b", "fleet-controller": "paused"}, Assignment{}},
		"16 in the other spelling":          {"Fleet/other", map[string]string{"site": "b", "flightctl.io/fleet-controller": "paused"}, Assignment{}},
		"17 it is paused no more":           {"", map[string]string{"site": "b", "fleet-controller": "on"}, Assignment{Owner: "Fleet/other", Fleet: "other"}},
		"18 it is paused, and none matches": {"", map[string]string{"fleet-controller": "paused"}, Assignment{}},
		"19 a foreign owner":                {"ResourceSync/git", map[string]string{"site": "b"}, Assignment{Owner: "ResourceSync/git"}},
		"20 the oldest claims":              {"", map[string]string{"site": "a"}, Assignment{"Fleet/old", "old", []string{"old", "young"}}},
		"20 the present owner stays":        {"Fleet/young", map[string]string{"site": "a"}, Assignment{"Fleet/young", "young", []string{"old", "young"}}},
		"terms":                             {"", map[string]string{"line": "2"}, Assignment{Owner: "Fleet/terms", Fleet: "terms"}},
		"a term that doesn't hold":          {"", map[string]string{"line": "2", "old": "yes"}, Assignment{}},
		"the owner is gone":                 {"Fleet/gone", map[string]string{"site": "b"}, Assignment{Owner: "Fleet/other", Fleet: "other"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, x.Assign(c.owner, c.labels)) })
	}
}

func parseSpec(t testing.TB, text string) (s resource.NodeSpec) {
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	return s
}

func TestTemplatesAreExpandedForANode(t *testing.T) {
	node := resource.Meta{Name: "n1", Labels: map[string]string{"site": "Hall 7", "a/b": "x"}, Annotations: map[string]string{"note": "hi"}}
	for text, want := range map[string]string{
		`no template`: `no template`,
		`{{ .metadata.name }}-{{ .metadata.labels.site }}`:                                `n1-Hall 7`,
		`{{ index .metadata.labels "a/b" }} {{ .metadata.annotations.note }}`:             `x hi`,
		`{{ .metadata.labels.site | lower | replace " " "-" }}`:                           `hall-7`,
		`{{ upper .metadata.name }}{{ getOrDefault .metadata.labels "no" "otherwise"}}`:   `N1otherwise`,
		`{{ if eq .metadata.name "n1" }}first{{ else if .x }}no{{ else }}second{{ end }}`: `first`,
		`{{ with .metadata.labels }}{{ .site }}{{ end }}`:                                 `Hall 7`,
		`{{ (index .metadata.labels "site") }}`:                                           `Hall 7`,
	} {
		in := resource.NodeSpec{OS: &resource.NodeOS{Image: "quay.io/a:" + text}}
		out, err := ExpandTemplate(in, node)
		require.NoError(t, err, text)
		require.Equal(t, "quay.io/a:"+want, out.OS.Image)
		require.Equal(t, "quay.io/a:"+text, in.OS.Image)
		require.NoError(t, templates.Check(in, "spec"))
	}
	for text, why := range map[string]string{
		`{{ .metadata.labels.room }}`:         `no entry for key "room"`,
		`{{ index .metadata.labels "room" }}`: `there is no "room"`,
		`{{ .metadata.uid }}`:                 `no entry for key "uid"`,
		`{{ replace "a" "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" .metadata.labels.big }}`: "longer than 262144 bytes",
	} {
		node := node
		node.Labels = map[string]string{"big": strings.Repeat("a", 10_000)}
		_, err := ExpandTemplate(parseSpec(t, `{"config":[{"name":"a","configType":"FileListProviderSpec","files":[{"path":"/x","content":`+quoteJSON(text)+`}]}]}`), node)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "spec.config[0].files[0].content: node n1: ")
	}
	for text, why := range map[string]string{
		`{{ range .metadata.labels }}{{ end }}`:        "range and template are not supported",
		`{{ define "a" }}{{ template "a" }}{{ end }}x`: "define and block are not supported",
		`{{ template "a" }}`:                           "range and template are not supported",
		`{{ printf "%1000000d" 1 }}`:                   "the function printf is not supported",
		`{{ call .x }}`:                                "the function call is not supported",
		`{{ if (html "x") }}{{ end }}`:                 "the function html is not supported",
		`{{ nosuch }}`:                                 "nosuch",
		`{{ .metadata`:                                 "unclosed action",
	} {
		in := resource.NodeSpec{OS: &resource.NodeOS{Image: text}}
		require.ErrorContains(t, templates.Check(in, "spec"), why)
		_, err := ExpandTemplate(in, node)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "spec.os.image")
	}
}

func quoteJSON(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func FuzzExpand(f *testing.F) {
	f.Add(`{{ index .metadata.labels "a" | upper }}{{ if eq .metadata.name "n1" }}x{{ end }}`)
	f.Fuzz(func(t *testing.T, text string) {
		in := resource.NodeSpec{OS: &resource.NodeOS{Image: text}}
		out, err := ExpandTemplate(in, resource.Meta{Name: "n1", Labels: map[string]string{"a": "b"}})
		if err == nil && out.OS != nil && len(out.OS.Image) > 256<<10 {
			t.Fatal(len(out.OS.Image))
		}
	})
}

// A node asks only the fleets that have a label of it.
func BenchmarkAssign(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("fleets=%d", n), func(b *testing.B) {
			var list []OwnerCandidate
			for i := range n {
				list = append(list, candidateWithLabel(fmt.Sprint(i), i, "site", fmt.Sprint(i)))
			}
			x := NewSelectorIndex(list)
			for b.Loop() {
				x.Assign("", map[string]string{"site": "0", "line": "3"})
			}
		})
	}
}
