package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/client"
)

func TestWhatIsNotFoundIsToldWithTheNearName(t *testing.T) {
	startHub(t)
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	runEdgebus(t, 0, "context", "set", "plant", "--server", "http://127.0.0.1:1", "--use")
	for _, x := range []struct{ line, near string }{
		{"get device lmp", "lamp"},
		{"get devcies", "devices"},
		{"get device/lmp -o json", "lamp"},
		{"describe node n2", "n1"},
		{"watch device lmp", "lamp"},
		{"delete device lmp", "lamp"},
		{"twin get lmp", "lamp"},
		{"twin get lamp brightnes", "brightness"},
		{"twin set lamp brightnes=3", "brightness"},
		{"get devices --context plnt", "plant"},
		{"context use plnt", "plant"},
	} {
		var out, errs bytes.Buffer
		code := run(strings.Fields(x.line), &out, &errs)
		require.Contains(t, errs.String(), "did you mean "+x.near+"?", x.line)
		require.Contains(t, []int{notFound, refused}, code, x.line)
	}
	var errs bytes.Buffer
	run([]string{"get", "device", "pump"}, &bytes.Buffer{}, &errs)
	require.NotContains(t, errs.String(), "did you mean")
}

func TestAWideTableFits160Columns(t *testing.T) {
	long := strings.Repeat("registry.example/", 8)
	table := client.Table{Columns: []client.Column{
		{Name: "Name", Format: "name"}, {Name: "State"}, {Name: "Image", Priority: 1}, {Name: "Certificate-Ends", Priority: 1}, {Name: "Reported", Priority: 1}, {Name: "Age"},
	}}
	name := strings.Repeat("n", 70)
	for _, cells := range [][]any{{"n1", "online", long, "in 60d", "power=ON", "1h"}, {name, "online", "", "in 59d", long, "2h"}} {
		var row client.Row
		row.Cells = cells
		table.Rows = append(table.Rows, row)
	}
	var out bytes.Buffer
	p := tablePrinter{out: &out, wide: true}
	require.NoError(t, p.print(table, ""))
	require.NoError(t, p.print(client.Table{Rows: table.Rows[:1]}, "12:00:00 power: OFF → ON"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 4)
	for _, line := range lines[:3] {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 160, line)
	}
	require.Greater(t, utf8.RuneCountInString(lines[2]), 155, "no more is cut than has to be")
	require.Contains(t, lines[0], "CERTIFICATE-ENDS")
	require.Contains(t, lines[2], name, "names are not cut")
	require.Contains(t, lines[1], "registry.example/")
	require.Contains(t, lines[1], "…")
	require.Contains(t, lines[3], "power: OFF → ON", "a note is not cut")

	out.Reset()
	require.NoError(t, (&tablePrinter{out: &out, wide: true}).print(client.Table{Columns: table.Columns, Rows: []client.Row{{Cells: []any{"n1", "online", "x", "in 60d", "power=ON", "1h"}}}}, ""))
	require.NotContains(t, out.String(), "…", "what fits stays whole")
}
