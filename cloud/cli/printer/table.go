// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// AlignedRows writes rows with aligned columns. Later rows are aligned with earlier ones.
type AlignedRows struct{ widths []int }

const columnGap = 3

func (g *AlignedRows) Write(out io.Writer, rows [][]string) error {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(g.widths) {
				g.widths = append(g.widths, 0)
			}
			g.widths[i] = max(g.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	on := terminal.ColoursOf(out)
	for _, row := range rows {
		for len(row) > 0 && row[len(row)-1] == "" {
			row = row[:len(row)-1]
		}
		for i, cell := range row {
			padded := cell
			if i < len(row)-1 {
				padded = terminal.Pad(cell, g.widths[i]+columnGap)
			}
			b.WriteString(on.PaintState(cell, padded))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// WidestCell is the most that a table has of a value, in characters.
const WidestCell = 100

// TablePrinter prints the hub's Tables of one kind.
type TablePrinter struct {
	Out        io.Writer
	Wide       bool
	Namespaces bool        // a column for them
	Kind       client.Kind // printed before each name if named is set
	Named      bool
	Labels     bool // a last column for them
	// WithoutHeading leaves the first line out.
	WithoutHeading bool
	grid           AlignedRows
	columns        []client.Column
	Headed         bool
	Nodes          []string // of devices that were printed
}

// Print prints a Table. Only the first has a heading; note is a further column.
func (p *TablePrinter) Print(t client.Table, note string) error {
	if len(t.Columns) > 0 {
		p.columns = t.Columns
	}
	var rows [][]string
	if !p.Headed && len(t.Rows) > 0 {
		if p.Headed = true; !p.WithoutHeading {
			rows = append(rows, p.heading())
		}
	}
	for _, r := range t.Rows {
		rows = append(rows, p.row(r, note))
	}
	if p.Wide {
		p.fit(rows)
	}
	return p.grid.Write(p.Out, rows)
}

const (
	widestTable   = 160 // a line of -o wide, in characters
	narrowestCell = 16  // what is left of a cell that is shortened, unless its heading is longer
)

// fit shortens the widest columns until a line is at most widestTable characters. Names, which other commands take, and the note
// stay whole.
func (p *TablePrinter) fit(rows [][]string) {
	names := 1 // columns
	if p.Namespaces {
		names++
	}
	heading := p.heading()
	if p.Labels { // which a script may read
		heading = heading[:len(heading)-1]
	}
	widths := slices.Clone(p.grid.widths)
	widths = append(widths, make([]int, max(0, len(heading)-len(widths)))...)[:len(heading)]
	for _, row := range rows {
		for i := range min(len(row), len(widths)) {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > widestTable; total-- {
		widest := -1
		for i := names; i < len(widths); i++ {
			if widths[i] > max(narrowestCell, utf8.RuneCountInString(heading[i])) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for i := names; i < min(len(row), len(widths)); i++ {
			row[i] = terminal.Printable(row[i], widths[i])
		}
	}
}

func (p *TablePrinter) heading() (row []string) {
	if p.Namespaces {
		row = append(row, "NAMESPACE")
	}
	for _, c := range p.columns {
		if c.Priority == 0 || p.Wide {
			row = append(row, strings.ToUpper(c.Name))
		}
	}
	if p.Labels {
		row = append(row, "LABELS")
	}
	return row
}

func (p *TablePrinter) row(r client.Row, note string) (row []string) {
	if p.Namespaces {
		row = append(row, r.Object.Metadata.Namespace)
	}
	for i, c := range p.columns {
		if i >= len(r.Cells) || c.Priority > 0 && !p.Wide {
			continue
		}
		text := cellText(r.Cells[i])
		if c.Name == "Node" && p.Kind.Name == resource.KindDevice {
			p.Nodes = append(p.Nodes, text)
		}
		if p.Named && c.Format == "name" {
			text = Label(p.Kind, text)
		}
		row = append(row, text)
	}
	if p.Labels {
		row = append(row, labelsText(r.Object.Metadata.Labels))
	}
	if note != "" {
		row = append(row, note)
	}
	return row
}

// labelsText are labels as a selector has them.
func labelsText(labels map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, name+"="+labels[name])
	}
	return terminal.Printable(cmp.Or(strings.Join(all, ","), "<none>"), math.MaxInt)
}

// cellText is a value of a Table as text.
func cellText(v any) string {
	switch v := v.(type) {
	case nil:
		return "<none>"
	case string:
		if v == "" {
			return "<none>"
		}
		return terminal.Printable(v, WidestCell)
	default:
		text, _ := json.Marshal(v) // it came from JSON
		return terminal.Printable(string(text), WidestCell)
	}
}
