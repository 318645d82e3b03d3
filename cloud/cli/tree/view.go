// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics"
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

// EachChange calls f with each change until ctx ends or one is an error.
func EachChange(ctx context.Context, changes <-chan Change, f func(Change) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.Err != nil {
				return c.Err
			}
			if err := f(c); err != nil {
				return err
			}
		}
	}
}

// Change is a topic's new value, or, without a key, something about the connection or the demo's programs.
type Change struct {
	Key string `json:"key"`
	TopicValue
	Up   bool   // connected: all topics follow
	down string // why there is no connection
	Note string
	Err  error
}

// TopicValue is a topic's value; that of a cleared topic is empty.
type TopicValue struct {
	Value      string    `json:"value"`
	Ver        uint64    `json:"ver,omitempty"`
	TS         time.Time `json:"ts,omitzero"`
	Origin     string    `json:"origin,omitempty"`
	receivedAt time.Time
}

// changeOfMessage reads a message of the tree's state. Streams, commands and the link's own topics are not part of it.
func changeOfMessage(m client.Message, now time.Time) (Change, bool) {
	address, err := topics.Parse(m.Topic)
	if err != nil || !isStateTopic(address.Kind) {
		return Change{}, false
	}
	c := Change{Key: address.Key(), TopicValue: TopicValue{Value: string(m.Payload), Origin: m.Property("origin"), receivedAt: now}}
	c.Ver, _ = strconv.ParseUint(m.Property("ver"), 10, 64)
	c.TS, _ = time.Parse(time.RFC3339, m.Property("ts"))
	return c, true
}

func isStateTopic(kind topics.Kind) bool {
	for _, t := range topics.Table() {
		if t.Kind == kind {
			return t.Retain
		}
	}
	return false
}

func (c Change) String() string {
	switch {
	case c.Up:
		return "— connected"
	case c.down != "":
		return "— " + terminal.Printable(c.down, 200)
	case c.Note != "":
		return "— " + terminal.Printable(c.Note, 200)
	}
	text := c.Key + " = " + terminal.Printable(c.Value, 120)
	if c.Value == "" {
		text = c.Key + " is cleared"
	}
	if c.Ver > 0 {
		text += fmt.Sprintf("  (ver %d)", c.Ver)
	}
	return text
}

// A screen is drawn every redraw at most, and every tick at least, because ages change.
const (
	RedrawInterval     = 200 * time.Millisecond
	IdleRedrawInterval = time.Second
)

// Watch draws the tree in place, again and again, above the state of a lost connection.
func Watch(ctx context.Context, v *View, changes <-chan Change, out io.Writer, size func() (int, int)) error {
	fmt.Fprint(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	defer fmt.Fprint(out, "\x1b[?25h\r\n")
	timer := time.NewTimer(RedrawInterval)
	defer timer.Stop()
	var drawn time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.Err != nil {
				return c.Err
			}
			v.Apply(c)
			timer.Reset(max(0, RedrawInterval-time.Since(drawn)))
		case <-timer.C:
			drawn = time.Now()
			width, height := size()
			fmt.Fprint(out, fitFrame(v.Text(drawn, width), v.Footer(), width, height))
			timer.Reset(IdleRedrawInterval)
		}
	}
}

// fitFrame fits text and footer on a screen, and clears the rest of the last frame.
func fitFrame(text string, footer []string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	room := max(1, height-len(footer)-1)
	if len(lines) > room {
		hidden := len(lines) - room + 1
		lines = append(slices.Clone(lines[:room-1]), fmt.Sprintf("… %d more", hidden))
	}
	for _, line := range footer {
		lines = append(lines, terminal.Shorten(line, width))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
