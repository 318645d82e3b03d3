package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// treeOptions are the flags of edgebus tree.
type treeOptions struct {
	brokerFlags
	once   bool
	output string
	settle time.Duration
}

func newTree() *cobra.Command {
	var o treeOptions
	cmd := &cobra.Command{
		Use:   "tree NODE",
		Short: "Show a node's topics, live",
		Long: `Show every topic of a node's tree with its value, version and age, and every change.

The topics are read from the hub's broker. The node's own broker has the same:
--server mqtt://127.0.0.1:2883 on the node.`,
		Example: "  edgebus tree demo\n  edgebus tree demo --once -o json | jq .topics",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print the tree once, and end")
	outputFlag(cmd, &o.output, "json is the whole tree with --once, else one object for each change", "tree", "json")
	f.DurationVar(&o.settle, "settle", 300*time.Millisecond, "with --once: the tree is complete when no topic has come for this long")
	return cmd
}

func (o treeOptions) run(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	changes, err := treeSource{target: o.target, ofHub: o.mqtt == "", once: o.once}.follow(ctx, node)
	if err != nil {
		return err
	}
	if o.once {
		return o.printOnce(ctx, node, changes, out)
	}
	if o.output == "json" {
		return eachChange(ctx, changes, func(c change) error {
			if c.Key == "" {
				return nil // it is about the connection
			}
			return json.NewEncoder(out).Encode(c)
		})
	}
	if size, ok := terminalSize(out); ok {
		v := newView(node)
		v.down = "connecting to " + o.target.MQTT
		return watchScreen(ctx, v, changes, out, size)
	}
	return eachChange(ctx, changes, func(c change) error {
		_, err := fmt.Fprintln(out, c)
		return err
	})
}

// firstTopicTime is how long to wait for the first topic, which a broker sends at once after the subscription.
const firstTopicTime = 2 * time.Second

// printOnce prints the tree after its retained topics have arrived.
func (o treeOptions) printOnce(ctx context.Context, node string, changes <-chan change, out io.Writer) error {
	v := newView(node)
	var settled <-chan time.Time // from the first topic on
	for open := true; open; {
		select {
		case c, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if c.err != nil {
				return c.err
			}
			v.apply(c)
			if c.Key != "" {
				settled = time.After(o.settle)
			}
		case <-settled:
			open = false
		}
	}
	if v.down != "" {
		return errors.New(v.down)
	}
	if o.output == "json" {
		return printJSON(out, v.document())
	}
	_, err := io.WriteString(out, v.text(time.Now(), 0))
	return err
}

func eachChange(ctx context.Context, changes <-chan change, f func(change) error) error {
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
			if err := f(c); err != nil {
				return err
			}
		}
	}
}

// treeSource is the broker that a node's tree is read from.
type treeSource struct {
	target  hubTarget
	ofHub   bool // the broker is the hub's, whose API knows what other nodes there are
	once    bool // what is there now is enough
	forever bool // a lost connection is never given up
}

// follow subscribes to a node's tree. The channel closes when ctx ends. A
// connection that is refused or can't be made at first is an error in the channel, and so is
// that the broker has no topic of the node; a connection that is lost later is made again.
func (s treeSource) follow(ctx context.Context, node string) (<-chan change, error) {
	co, err := s.target.mqttOptions("tree")
	if err != nil {
		return nil, err
	}
	changes := make(chan change, 64)
	send := func(c change) {
		select {
		case changes <- c:
		case <-ctx.Done():
		}
	}
	seen := s.forever // by the client's goroutine
	run, end := context.WithCancelCause(ctx)
	nothing := time.AfterFunc(math.MaxInt64, func() {
		near := ""
		if s.ofHub { // otherwise it may be the broker of a node
			near = s.target.similarNode(run, node)
		}
		end(exitErrorf(notFound, "nothing is known of a node %s at %s%s (edgebus get nodes lists the nodes)", node, s.target.MQTT, near))
	})
	co.Attempts, co.ConnectTimeout = s.attempts(), s.connectTime()
	co.Subscriptions = []client.Subscription{{Filter: topics.Prefix + node + "/#", QoS: 1}}
	co.OnConnect = func(context.Context, bool) error {
		if !seen {
			nothing.Reset(firstTopicTime)
		}
		send(change{up: true})
		return nil
	}
	co.OnMessage = func(m client.Message) {
		if c, ok := changeOfMessage(m, time.Now()); ok {
			seen = true
			nothing.Stop()
			send(c)
		}
	}
	co.OnDisconnect = func(err error) {
		nothing.Stop()
		send(change{down: "not connected to " + s.target.MQTT + ": " + err.Error()})
	}
	co.OnConnectError = co.OnDisconnect
	c, err := client.New(co)
	if err != nil {
		end(nil)
		return nil, err
	}
	go func() {
		defer close(changes)
		defer end(nil)
		err := c.Run(run)
		switch cause := context.Cause(run); {
		case cause != nil:
			err = cause
		case err != nil:
			err = connectionError(err, s.target.MQTT)
		}
		if err != nil && ctx.Err() == nil {
			send(change{err: err})
		}
	}()
	return changes, nil
}

func (s treeSource) connectTime() time.Duration {
	if s.once {
		return connectTimeout
	}
	return 0 // the client's default
}

// attempts is how often a connection is tried: fewer times with --once, which is for scripts.
func (s treeSource) attempts() int {
	switch {
	case s.forever:
		return 0
	case s.once:
		return 2
	default:
		return 20
	}
}

func connectionError(err error, server string) error {
	var refused *client.Refused
	if errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("no connection to %s: %w", server, err)
}

// terminalSize is whether out is a terminal, and a function that returns its size.
func terminalSize(out any) (size func() (width, height int), ok bool) {
	file, isFile := out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil, false
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}, true
}

// change is a topic's new value, or, without a key, something about the connection or the demo's programs.
type change struct {
	Key string `json:"key"`
	value
	up   bool   // connected: all topics follow
	down string // why there is no connection
	note string
	err  error
}

// value is a topic's value; that of a cleared topic is empty.
type value struct {
	Value      string    `json:"value"`
	Ver        uint64    `json:"ver,omitempty"`
	TS         time.Time `json:"ts,omitzero"`
	Origin     string    `json:"origin,omitempty"`
	receivedAt time.Time
}

// changeOfMessage reads a message of the tree's state. Streams, commands and the link's own topics are not part of it.
func changeOfMessage(m client.Message, now time.Time) (change, bool) {
	address, err := topics.Parse(m.Topic)
	if err != nil || !isStateTopic(address.Kind) {
		return change{}, false
	}
	c := change{Key: address.Key(), value: value{Value: string(m.Payload), Origin: m.Property("origin"), receivedAt: now}}
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

func (c change) String() string {
	switch {
	case c.up:
		return "— connected"
	case c.down != "":
		return "— " + printableText(c.down, 200)
	case c.note != "":
		return "— " + printableText(c.note, 200)
	}
	text := c.Key + " = " + printableText(c.Value, 120)
	if c.Value == "" {
		text = c.Key + " is cleared"
	}
	if c.Ver > 0 {
		text += fmt.Sprintf("  (ver %d)", c.Ver)
	}
	return text
}

// treeView is a node's tree as it was received.
type treeView struct {
	node   string
	values map[string]value
	down   string   // why there is no connection
	notes  []string // the last ones
}

const mostNotes = 3

func newView(node string) *treeView { return &treeView{node: node, values: map[string]value{}} }

func (v *treeView) apply(c change) {
	switch {
	case c.up:
		clear(v.values) // no message tells what was deleted meanwhile
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

// document is the tree for JSON.
func (v *treeView) document() any {
	return struct {
		Node   string           `json:"node"`
		Topics map[string]value `json:"topics"`
	}{v.node, v.values}
}

// treeRow is one line of the tree.
type treeRow struct {
	label string
	key   string
}

// rows lays the tree out: a line for each level of each topic.
func (v *treeView) rows() []treeRow {
	root := &treeBranch{}
	for key := range v.values {
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

// text draws the tree. Lines are cut at width; 0: they are not.
func (v *treeView) text(now time.Time, width int) string {
	rows := v.rows()
	labels, values := 0, 0
	for _, r := range rows {
		labels = max(labels, utf8.RuneCountInString(r.label))
		values = max(values, min(40, utf8.RuneCountInString(printableText(v.values[r.key].Value, 40))))
	}
	var out strings.Builder
	fmt.Fprintln(&out, v.node)
	for _, r := range rows {
		line := r.label
		if val, ok := v.values[r.key]; ok && r.key != "" {
			line = padRight(r.label, labels) + "  " + padRight(printableText(val.Value, 40), values) + "  " + val.versionAndAge(now)
		}
		line = strings.TrimRight(line, " ")
		if width > 0 {
			line = shorten(line, width)
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// versionAndAge is a value's version and age.
func (val value) versionAndAge(now time.Time) string {
	var parts []string
	if val.Ver > 0 {
		parts = append(parts, fmt.Sprintf("ver %d", val.Ver))
	}
	if at := cmp.Or(val.TS, val.receivedAt); !at.IsZero() {
		parts = append(parts, formatAge(now.Sub(at)))
	}
	return strings.Join(parts, ", ")
}

func formatAge(d time.Duration) string {
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

// printableText makes one line of a text, without control characters for a terminal and of bounded length.
func printableText(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
	return shorten(s, most)
}

func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

func padRight(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// A screen is drawn every redraw at most, and every tick at least, because ages change.
const (
	redrawInterval     = 200 * time.Millisecond
	idleRedrawInterval = time.Second
)

// watchScreen draws the tree in place, again and again, above the state of a lost connection.
func watchScreen(ctx context.Context, v *treeView, changes <-chan change, out io.Writer, size func() (int, int)) error {
	fmt.Fprint(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	defer fmt.Fprint(out, "\x1b[?25h\r\n")
	timer := time.NewTimer(redrawInterval)
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
			timer.Reset(max(0, redrawInterval-time.Since(drawn)))
		case <-timer.C:
			drawn = time.Now()
			width, height := size()
			fmt.Fprint(out, fitFrame(v.text(drawn, width), v.footer(), width, height))
			timer.Reset(idleRedrawInterval)
		}
	}
}

// footer says below the tree why there is no connection.
func (v *treeView) footer() []string {
	if v.down == "" {
		return nil
	}
	return []string{"", "— " + printableText(v.down, 200)}
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
		lines = append(lines, shorten(line, width))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
