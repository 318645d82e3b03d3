package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// alignedRows writes rows with aligned columns. Later rows are aligned with earlier ones.
type alignedRows struct{ widths []int }

const columnGap = 3

func (g *alignedRows) write(out io.Writer, rows [][]string) error {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(g.widths) {
				g.widths = append(g.widths, 0)
			}
			g.widths[i] = max(g.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	on := coloursOn(out)
	for _, row := range rows {
		for len(row) > 0 && row[len(row)-1] == "" {
			row = row[:len(row)-1]
		}
		for i, cell := range row {
			padded := cell
			if i < len(row)-1 {
				padded = padRight(cell, g.widths[i]+columnGap)
			}
			b.WriteString(on.paintState(cell, padded))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

const widestCell = 100 // a cell, in characters

// tablePrinter prints the hub's Tables of one kind.
type tablePrinter struct {
	out        io.Writer
	wide       bool
	namespaces bool        // a column for them
	kind       client.Kind // printed before each name if named is set
	named      bool
	grid       alignedRows
	columns    []client.Column
	headed     bool
	nodes      []string // of devices that were printed
}

// print prints a Table. Only the first has a heading; note is a further column.
func (p *tablePrinter) print(t client.Table, note string) error {
	if len(t.Columns) > 0 {
		p.columns = t.Columns
	}
	var rows [][]string
	if !p.headed && len(t.Rows) > 0 {
		rows, p.headed = append(rows, p.heading()), true
	}
	for _, r := range t.Rows {
		rows = append(rows, p.row(r, note))
	}
	if p.wide {
		p.fit(rows)
	}
	return p.grid.write(p.out, rows)
}

const (
	widestTable   = 160 // a line of -o wide, in characters
	narrowestCell = 16  // what is left of a cell that is shortened, unless its heading is longer
)

// fit shortens the widest columns until a line is at most widestTable characters. Names, which other commands take, and the note
// stay whole.
func (p *tablePrinter) fit(rows [][]string) {
	names := 1 // columns
	if p.namespaces {
		names++
	}
	heading := p.heading()
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
			row[i] = printableText(row[i], widths[i])
		}
	}
}

func (p *tablePrinter) heading() (row []string) {
	if p.namespaces {
		row = append(row, "NAMESPACE")
	}
	for _, c := range p.columns {
		if c.Priority == 0 || p.wide {
			row = append(row, strings.ToUpper(c.Name))
		}
	}
	return row
}

func (p *tablePrinter) row(r client.Row, note string) (row []string) {
	if p.namespaces {
		row = append(row, r.Object.Metadata.Namespace)
	}
	for i, c := range p.columns {
		if i >= len(r.Cells) || c.Priority > 0 && !p.wide {
			continue
		}
		text := cellText(r.Cells[i])
		if c.Name == "Node" && p.kind.Name == resource.KindDevice {
			p.nodes = append(p.nodes, text)
		}
		if p.named && c.Format == "name" {
			text = objectLabel(p.kind, text)
		}
		row = append(row, text)
	}
	if note != "" {
		row = append(row, note)
	}
	return row
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
		return printableText(v, widestCell)
	default:
		text, _ := json.Marshal(v) // it came from JSON
		return printableText(string(text), widestCell)
	}
}

// documentOf is an object without the fields that the API keeps for itself.
func documentOf(o client.Object) (map[string]any, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	return tree, nil
}

// printDocument prints anything as yaml or json.
func printDocument(out io.Writer, form string, v any) error {
	if form == "json" {
		return printJSON(out, v)
	}
	text, err := yamlText(v)
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}

func yamlText(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(raw)
	return string(text), err
}

// printDocuments prints objects: one as itself, several as a List.
func printDocuments(out io.Writer, form string, objects []client.Object, single bool) error {
	items := make([]any, 0, len(objects))
	for _, o := range objects {
		tree, err := documentOf(o)
		if err != nil {
			return err
		}
		items = append(items, tree)
	}
	if single && len(items) == 1 {
		return printDocument(out, form, items[0])
	}
	return printDocument(out, form, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

// printRows prints a table, or with -o json what it is of.
func printRows(out io.Writer, form string, of any, rows [][]string) error {
	if form == "json" {
		return printJSON(out, of)
	}
	return new(alignedRows).write(out, rows)
}

// outputFlag registers --output, which is one of these, the first by default.
func outputFlag(cmd *cobra.Command, to *string, usage string, choices ...string) {
	*to = choices[0]
	last := len(choices) - 1
	usage = strings.TrimSuffix(strings.Join(choices[:last], ", ")+" or "+choices[last]+"; "+usage, "; ")
	cmd.Flags().VarP(choiceFlag{to, choices}, "output", "o", usage)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// choiceFlag is a flag's value, one of a few.
type choiceFlag struct {
	to *string
	of []string
}

func (c choiceFlag) String() string { return *c.to }
func (c choiceFlag) Type() string   { return "string" }

func (c choiceFlag) Set(v string) error {
	if !slices.Contains(c.of, v) {
		return fmt.Errorf("it is one of %s", strings.Join(c.of, ", "))
	}
	*c.to = v
	return nil
}

func pluralise(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// colours is whether output is coloured: on a terminal, without NO_COLOR.
type colours bool

func coloursOn(out io.Writer) colours {
	_, screen := terminalSize(out)
	return colours(screen && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

const (
	colourRed    = "31"
	colourGreen  = "32"
	colourYellow = "33"
	styleFaint   = "2"
	styleBold    = "1"
)

func (on colours) paint(code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// paintState colours states.
func (on colours) paintState(cell, text string) string {
	switch cell {
	case "online":
		return on.paint(colourGreen, text)
	case "offline":
		return on.paint(colourRed, text)
	case "unknown", "no", "False":
		return on.paint(colourYellow, text)
	}
	return text
}

func paintMark(on colours, m mark) string {
	return on.paint(map[mark]string{markOK: colourGreen, markLook: colourYellow, markWrong: colourRed}[m], m.sign())
}

// showProgress shows on a terminal what is waited for, and for how long, until stop is called; elsewhere nothing.
func showProgress(errs io.Writer, limit time.Duration, what func() string) (stop func()) {
	if _, screen := terminalSize(errs); !screen {
		return func() {}
	}
	began, done := time.Now(), make(chan struct{})
	show := func() {
		text := fmt.Sprintf("waiting for %s: %s of %s", what(), time.Since(began).Round(time.Second), limit)
		fmt.Fprint(errs, "\r\x1b[K"+coloursOn(errs).paint(styleFaint, printableText(text, 78)))
	}
	var shown sync.WaitGroup
	shown.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for show(); ; show() {
			select {
			case <-done:
				fmt.Fprint(errs, "\r\x1b[K")
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		shown.Wait()
	}
}
