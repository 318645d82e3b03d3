// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheModelsOfTheLibraryAreValidAndSayWhatTheyAre(t *testing.T) {
	models, err := LibraryModels()
	require.NoError(t, err)
	require.NotEmpty(t, models)
	for _, m := range models {
		require.NoError(t, m.Validate(), m.Metadata.Name)
		file, err := modelFiles.ReadFile("models/" + m.Metadata.Name + ".yaml")
		require.NoError(t, err, "a model is in the file of its name")
		require.Equal(t, m.YAML, file)
		require.True(t, strings.HasPrefix(string(file), "# "), "%s says what it is for", m.Metadata.Name)
		require.Contains(t, string(file), "edgebus device add NAME --model "+m.Metadata.Name+" --node NODE ", "and how such a device is added")
		require.NotEmpty(t, m.Spec.Title, m.Metadata.Name)
		require.Len(t, m.Spec.PropertyVisitors, 1, "%s: device add then needs no --protocol", m.Metadata.Name)
		reached := map[string]bool{}
		for _, v := range m.Spec.PropertyVisitors[0].Visitors {
			reached[v.PropertyName+v.EventName+v.CommandName] = true
		}
		for _, p := range m.Spec.Properties {
			require.NotEmpty(t, p.Title, "%s %s", m.Metadata.Name, p.Name)
			require.True(t, reached[p.Name], "%s %s has no visitor", m.Metadata.Name, p.Name)
			require.False(t, p.Quantity == "energy" && !p.Counter, "%s %s: energy is counted", m.Metadata.Name, p.Name)
		}
		for _, e := range m.Spec.Events {
			require.True(t, reached[e.Name], "%s %s has no visitor", m.Metadata.Name, e.Name)
		}
		for _, c := range m.Spec.Commands {
			require.True(t, reached[c.Name], "%s %s has no visitor", m.Metadata.Name, c.Name)
		}
	}
}

func TestTheDocumentedLibraryIsWhole(t *testing.T) {
	models, err := LibraryModels()
	require.NoError(t, err)
	want := "| name | protocol | |\n|---|---|---|\n"
	for _, m := range models {
		want += fmt.Sprintf("| [`%s`](../configs/models/%s.yaml) | %s | %s |\n", m.Metadata.Name, m.Metadata.Name, m.Protocols(), m.Spec.Title)
	}
	text, err := os.ReadFile("../docs/models.md")
	require.NoError(t, err)
	require.True(t, strings.Contains(string(text), want+"\n"), "docs/models.md needs this list:\n%s", want)
}
