// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/client"
)

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
	p := TablePrinter{Out: &out, Wide: true}
	require.NoError(t, p.Print(table, ""))
	require.NoError(t, p.Print(client.Table{Rows: table.Rows[:1]}, "12:00:00 power: OFF → ON"))
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
	require.NoError(t, (&TablePrinter{Out: &out, Wide: true}).Print(client.Table{Columns: table.Columns, Rows: []client.Row{{Cells: []any{"n1", "online", "x", "in 60d", "power=ON", "1h"}}}}, ""))
	require.NotContains(t, out.String(), "…", "what fits stays whole")
}
