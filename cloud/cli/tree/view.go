package tree

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// View is a node's tree as it was received.
type View struct {
	node   string
	Values map[string]TopicValue
	Down   string   // why there is no connection
	Notes  []string // the last ones
}

const mostNotes = 3

// NewView is a view without topics.
func NewView(node string) *View { return &View{node: node, Values: map[string]TopicValue{}} }

// Apply changes the view as a change says.
func (v *View) Apply(c Change) {
	switch {
	case c.Up:
		clear(v.Values) // no message tells what was deleted meanwhile
		v.Down = ""
	case c.down != "":
		v.Down = c.down
	case c.Note != "":
		v.Notes = append(v.Notes, time.Now().Format(time.TimeOnly)+" "+c.Note)
		v.Notes = v.Notes[max(0, len(v.Notes)-mostNotes):]
	case c.Value == "":
		delete(v.Values, c.Key)
	default:
		v.Values[c.Key] = c.TopicValue
	}
}

// Document is the tree for JSON.
func (v *View) Document() any {
	return struct {
		Node   string                `json:"node"`
		Topics map[string]TopicValue `json:"topics"`
	}{v.node, v.Values}
}

// treeRow is one line of the tree.
type treeRow struct {
	label string
	key   string
}

// rows lays the tree out: a line for each level of each topic.
func (v *View) rows() []treeRow {
	root := &treeBranch{}
	for key := range v.Values {
		root.insert(strings.Split(key, "/"), key)
	}
	return root.rows("", nil)
}

type treeBranch struct {
	key      string // of the topic that ends here
	children map[string]*treeBranch
}

func (b *treeBranch) insert(path []string, key string) {
	if len(path) == 0 {
		b.key = key
		return
	}
	if b.children == nil {
		b.children = map[string]*treeBranch{}
	}
	child := b.children[path[0]]
	if child == nil {
		child = &treeBranch{}
		b.children[path[0]] = child
	}
	child.insert(path[1:], key)
}

func (b *treeBranch) rows(indent string, all []treeRow) []treeRow {
	names := slices.Sorted(maps.Keys(b.children))
	for i, name := range names {
		fork, below := "├─ ", "│  "
		if i == len(names)-1 {
			fork, below = "└─ ", "   "
		}
		child := b.children[name]
		all = append(all, treeRow{label: indent + fork + name, key: child.key})
		all = child.rows(indent+below, all)
	}
	return all
}

// Text draws the tree. Lines are cut at width; 0: they are not.
func (v *View) Text(now time.Time, width int) string {
	rows := v.rows()
	labels, values := 0, 0
	for _, r := range rows {
		labels = max(labels, utf8.RuneCountInString(r.label))
		values = max(values, min(40, utf8.RuneCountInString(terminal.Printable(v.Values[r.key].Value, 40))))
	}
	var out strings.Builder
	fmt.Fprintln(&out, v.node)
	for _, r := range rows {
		line := r.label
		if val, ok := v.Values[r.key]; ok && r.key != "" {
			line = terminal.Pad(r.label, labels) + "  " + terminal.Pad(terminal.Printable(val.Value, 40), values) + "  " + val.versionAndAge(now)
		}
		line = strings.TrimRight(line, " ")
		if width > 0 {
			line = terminal.Shorten(line, width)
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// versionAndAge is a value's version and age.
func (val TopicValue) versionAndAge(now time.Time) string {
	var parts []string
	if val.Ver > 0 {
		parts = append(parts, fmt.Sprintf("ver %d", val.Ver))
	}
	if at := cmp.Or(val.TS, val.receivedAt); !at.IsZero() {
		parts = append(parts, printer.Age(now.Sub(at)))
	}
	return strings.Join(parts, ", ")
}

// Footer says below the tree why there is no connection.
func (v *View) Footer() []string {
	if v.Down == "" {
		return nil
	}
	return []string{"", "— " + terminal.Printable(v.Down, 200)}
}
