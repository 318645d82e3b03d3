package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// change is one topic's new value, or without a key a word about the connection or
// the programs.
type change struct {
	Key string `json:"key"`
	value
	up   bool   // connected: every topic that is there follows
	down string // not connected, and why
	note string
	err  error
}

// value is what a topic holds. A topic that is gone holds nothing.
type value struct {
	Value  string    `json:"value"`
	Ver    uint64    `json:"ver,omitempty"`
	TS     time.Time `json:"ts,omitzero"`
	Origin string    `json:"origin,omitempty"`
	seen   time.Time
}

// fromMessage reads a message of the tree; streams, commands and the link's own
// traffic are none of its state.
func fromMessage(m client.Message, now time.Time) (change, bool) {
	address, err := topics.Parse(m.Topic)
	if err != nil || !isState(address.Kind) {
		return change{}, false
	}
	c := change{Key: address.Key(), value: value{Value: string(m.Payload), Origin: m.Property("origin"), seen: now}}
	c.Ver, _ = strconv.ParseUint(m.Property("ver"), 10, 64)
	c.TS, _ = time.Parse(time.RFC3339, m.Property("ts"))
	return c, true
}

func isState(kind topics.Kind) bool {
	for _, t := range topics.Table() {
		if t.Kind == kind {
			return t.Retain
		}
	}
	return false
}

func (c change) String() string {
	switch {
	case c.up:
		return "— connected"
	case c.down != "":
		return "— " + printable(c.down, 200)
	case c.note != "":
		return "— " + printable(c.note, 200)
	}
	text := c.Key + " = " + printable(c.Value, 120)
	if c.Value == "" {
		text = c.Key + " is cleared"
	}
	if c.Ver > 0 {
		text += fmt.Sprintf("  (ver %d)", c.Ver)
	}
	return text
}

// view is a node's tree as it was told.
type view struct {
	node   string
	values map[string]value
	down   string   // why there is no connection
	notes  []string // the last ones
}

const mostNotes = 3

func newView(node string) *view { return &view{node: node, values: map[string]value{}} }

func (v *view) apply(c change) {
	switch {
	case c.up:
		clear(v.values) // what was deleted meanwhile is not told
		v.down = ""
	case c.down != "":
		v.down = c.down
	case c.note != "":
		v.notes = append(v.notes, time.Now().Format(time.TimeOnly)+" "+c.note)
		v.notes = v.notes[max(0, len(v.notes)-mostNotes):]
	case c.Value == "":
		delete(v.values, c.Key)
	default:
		v.values[c.Key] = c.value
	}
}

// document is the tree as JSON has it.
func (v *view) document() any {
	return struct {
		Node   string           `json:"node"`
		Topics map[string]value `json:"topics"`
	}{v.node, v.values}
}

// row is one line of the tree.
type row struct {
	label string
	key   string
}

// rows lays the tree out: a line for each level of each topic.
func (v *view) rows() []row {
	keys := make([]string, 0, len(v.values))
	for key := range v.values {
		keys = append(keys, key)
	}
	root := &branch{}
	for _, key := range keys {
		root.grow(strings.Split(key, "/"), key)
	}
	return root.rows("", nil)
}

type branch struct {
	key      string // of the topic that ends here
	children map[string]*branch
}

func (b *branch) grow(path []string, key string) {
	if len(path) == 0 {
		b.key = key
		return
	}
	if b.children == nil {
		b.children = map[string]*branch{}
	}
	child := b.children[path[0]]
	if child == nil {
		child = &branch{}
		b.children[path[0]] = child
	}
	child.grow(path[1:], key)
}

func (b *branch) rows(indent string, all []row) []row {
	names := make([]string, 0, len(b.children))
	for name := range b.children {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		fork, below := "├─ ", "│  "
		if i == len(names)-1 {
			fork, below = "└─ ", "   "
		}
		child := b.children[name]
		all = append(all, row{label: indent + fork + name, key: child.key})
		all = child.rows(indent+below, all)
	}
	return all
}

// text draws the tree. A width of 0 is that of a file: nothing is cut off.
func (v *view) text(now time.Time, width int) string {
	rows := v.rows()
	labels, values := 0, 0
	for _, r := range rows {
		labels = max(labels, utf8.RuneCountInString(r.label))
		values = max(values, min(40, utf8.RuneCountInString(printable(v.values[r.key].Value, 40))))
	}
	var out strings.Builder
	fmt.Fprintln(&out, v.node)
	for _, r := range rows {
		line := r.label
		if val, ok := v.values[r.key]; ok && r.key != "" {
			line = pad(r.label, labels) + "  " + pad(printable(val.Value, 40), values) + "  " + val.note(now)
		}
		line = strings.TrimRight(line, " ")
		if width > 0 {
			line = clip(line, width)
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// note is a value's version and age.
func (val value) note(now time.Time) string {
	var parts []string
	if val.Ver > 0 {
		parts = append(parts, fmt.Sprintf("ver %d", val.Ver))
	}
	at := val.TS
	if at.IsZero() {
		at = val.seen
	}
	if !at.IsZero() {
		parts = append(parts, age(now.Sub(at)))
	}
	return strings.Join(parts, ", ")
}

func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// printable makes one short line of a value. Nothing in it may steer a terminal.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
	return clip(s, most)
}

func clip(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// redraw is how often a screen is drawn at most, and ages are at least.
const (
	redraw = 200 * time.Millisecond
	tick   = time.Second
)

// watchScreen draws the tree in place, again and again, above a footer.
func watchScreen(ctx context.Context, v *view, changes <-chan change, out io.Writer, size func() (int, int), footer []string) error {
	fmt.Fprint(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	defer fmt.Fprint(out, "\x1b[?25h\r\n")
	timer := time.NewTimer(redraw)
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
			if c.err != nil {
				return c.err
			}
			v.apply(c)
			timer.Reset(max(0, redraw-time.Since(drawn)))
		case <-timer.C:
			drawn = time.Now()
			width, height := size()
			fmt.Fprint(out, frame(v.text(drawn, width), v.foot(footer), width, height))
			timer.Reset(tick)
		}
	}
}

// foot is the footer below what there is to say.
func (v *view) foot(footer []string) []string {
	var said []string
	for _, note := range v.notes {
		said = append(said, printable(note, 200))
	}
	if v.down != "" {
		said = append(said, "— "+printable(v.down, 200))
	}
	if len(said) == 0 {
		return footer
	}
	return slices.Concat([]string{""}, said, footer)
}

// frame fits text and footer on a screen, and clears what is left of the last one.
func frame(text string, footer []string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	room := max(1, height-len(footer)-1)
	if len(lines) > room {
		hidden := len(lines) - room + 1
		lines = append(slices.Clone(lines[:room-1]), fmt.Sprintf("… %d more", hidden))
	}
	for _, line := range footer {
		lines = append(lines, clip(line, width))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
