package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/client"
)

// screen is the demo on a terminal: the node's tree as the hub's broker has it and as the node's own has it, side by
// side, and keys that change and break things.
type screen struct {
	d     *demo
	out   io.Writer
	size  func() (width, height int)
	wire  *wire
	cloud *view
	edge  *view
	last  string // what was drawn

	cut           bool
	changes, sent int // of what the edge owns: on the node while the link was cut, and told to the hub since it is back
	back          bool
	level         int
}

// sided is a change on one of the two brokers, a key that was pressed, or neither: something that was said.
type sided struct {
	change
	side int
	key  byte
}

const (
	ofCloud = iota
	ofEdge
	ofNobody
)

// watchKeys reads keys from a terminal until it is closed. The terminal gives every key at once until restore is called.
func watchKeys(ctx context.Context, in any, keys chan<- sided) (restore func()) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return func() {}
	}
	go func() {
		for buf := make([]byte, 16); ; {
			n, err := file.Read(buf)
			for _, key := range buf[:n] {
				select {
				case keys <- sided{side: ofNobody, key: key}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return func() { _ = term.Restore(int(file.Fd()), before) }
}

// run draws until ctx ends, somebody presses q, or a broker refuses us.
func (s *screen) run(ctx context.Context, in any, notes <-chan change) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make(chan sided)
	for side, at := range []string{s.d.hubMQTT, s.d.coreMQTT} {
		changes, err := treeOptions{brokerFlags: brokerFlags{server: "mqtt://" + at}, forever: true}.follow(ctx, demoNode)
		if err != nil {
			return err
		}
		go pass(ctx, changes, side, all)
	}
	go pass(ctx, notes, ofNobody, all)
	hands := map[string]*client.Client{}
	for name, at := range map[string]string{"cloud": s.d.hubMQTT, "edge": s.d.coreMQTT} {
		b := brokerFlags{server: "mqtt://" + at}
		o, err := b.options("demo-" + name)
		if err != nil {
			return err
		}
		c, err := client.New(o)
		if err != nil {
			return err
		}
		go func() { _ = c.Run(ctx) }()
		hands[name] = c
	}
	defer watchKeys(ctx, in, all)()
	fmt.Fprint(s.out, "\x1b[?25l\x1b[2J")
	defer fmt.Fprint(s.out, "\x1b[?25h\r\n")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-all:
			if c.err != nil {
				return c.err
			}
			if c.key == 'q' || c.key == 3 { // ctrl-C is a key like any other now
				return nil
			}
			s.take(c, hands)
			timer.Reset(redraw / 2)
		case <-timer.C:
			s.draw()
			timer.Reset(tick) // the size may be another
		}
	}
}

func pass(ctx context.Context, from <-chan change, side int, to chan<- sided) {
	for {
		select {
		case c, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- sided{change: c, side: side}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// edgeOwned says whether the edge owns a key of what is shown.
func edgeOwned(key string) bool {
	return strings.HasPrefix(key, "devices/") && (strings.Contains(key, "/reported/") || strings.Contains(key, "/override/"))
}

func (s *screen) take(c sided, hands map[string]*client.Client) {
	counts := c.Key != "" && edgeOwned(c.Key)
	switch c.side {
	case ofCloud:
		if counts && s.back && s.cloud.values[c.Key].Value != c.Value {
			s.sent++
		}
		s.cloud.apply(c.change)
		s.back = s.back && !s.inStep() // from then on it is as always
	case ofEdge:
		if counts && s.cut && s.edge.values[c.Key].Value != c.Value {
			s.changes++
		}
		s.edge.apply(c.change)
	default:
		if c.note != "" {
			s.cloud.apply(c.change)
		}
	}
	switch c.key {
	case 'l':
		on := "ON"
		if s.cloud.values["devices/lamp/desired/power"].Value == "ON" {
			on = "OFF"
		}
		s.want(hands["cloud"], "power", on)
	case 'd':
		has := s.cloud.values["devices/lamp/reported/brightness"].Value
		for range 40 {
			s.level = next(s.level, has)
			s.want(hands["edge"], "brightness", fmt.Sprint(s.level))
		}
	case 'c':
		if s.cut = !s.cut; s.cut {
			s.changes, s.sent, s.back = 0, 0, false
		} else {
			s.back = true
		}
		s.wire.cut(s.cut)
	case 'k':
		s.d.group.kill("edgecore")
	}
}

// next is the next level of brightness, of 1 to 100, that isn't what the hub has: after each change, also the last one,
// there is something to send, whatever was set before.
func next(level int, has string) int {
	if level = level%100 + 1; fmt.Sprint(level) == has {
		level = level%100 + 1
	}
	return level
}

func (s *screen) want(by *client.Client, property, value string) {
	by.PublishAsync(client.Message{Topic: "v1/nodes/" + demoNode + "/devices/lamp/desired/" + property, Payload: []byte(value), QoS: 1}, func(err error) {
		if err != nil {
			_ = s.d.say(err.Error())
		}
	})
}

// shownKeys are the topics of the devices that one of the two has.
func (s *screen) shownKeys() (keys []string) {
	for _, v := range []*view{s.cloud, s.edge} {
		for key := range v.values {
			if parts := strings.Split(key, "/"); parts[0] == "devices" && (len(parts) == 4 || len(parts) == 3 && parts[2] == "state") {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (s *screen) inStep() bool {
	return s.edge.down == "" && s.cloud.down == "" && s.cloud.values["state"].Value == "online" && !slices.ContainsFunc(s.shownKeys(), s.differs)
}

// differs says whether the two have different values, and will not always: on the node an override is what is desired.
func (s *screen) differs(key string) bool {
	return s.cloud.values[key].Value != s.edge.values[key].Value && !s.overridden(key)
}

func (s *screen) overridden(key string) bool {
	_, there := s.edge.values[strings.Replace(key, "/desired/", "/override/", 1)]
	return there && strings.Contains(key, "/desired/")
}

func (s *screen) draw() {
	width, height := s.size()
	frame := s.frame(width, height)
	if frame != s.last { // so that what is marked to be copied stays marked
		fmt.Fprint(s.out, frame)
		s.last = frame
	}
}

func (s *screen) frame(width, height int) string {
	on := coloursOn(s.out)
	how, code := "cloud and edge are in step", green
	switch {
	case s.cut:
		how, code = "the link is cut", red
	case s.edge.down != "":
		how, code = "the node is down", red
	case s.cloud.down != "":
		how, code = "the hub is down", red
	case !s.inStep():
		how, code = "catching up", yellow
	}
	const topic, column = 36, 20
	line := func(a, b, c, mark string) string {
		return clip(pad(clip(a, topic-1), topic)+pad(clip(b, column-1), column)+pad(clip(c, column-1), column)+mark, width)
	}
	value := func(v *view, key string) string {
		if text, ok := v.values[key]; ok {
			return printable(text.Value, column-1)
		}
		return "–"
	}
	lines := []string{
		on.paint(strong, clip("Edgebus: node "+demoNode+" – ", width)) + on.paint(code, how),
		on.paint(faint, line("= same  ≠ not yet  ↑ overridden", "CLOUD", "EDGE", "")),
	}
	foot := s.foot(width)
	keys := s.shownKeys()
	room := max(1, height-len(lines)-len(foot)-1)
	for i, key := range keys {
		if i == room-1 && len(keys) > room {
			lines = append(lines, clip(fmt.Sprintf("… %d more", len(keys)-i), width))
			break
		}
		mark, paint := "=", ""
		switch {
		case s.overridden(key):
			mark = "↑"
		case s.differs(key):
			mark, paint = "≠", yellow
		}
		text := line(strings.TrimPrefix(key, "devices/"), value(s.cloud, key), value(s.edge, key), mark)
		if paint != "" {
			text = on.paint(paint, text)
		}
		lines = append(lines, text)
	}
	for len(lines) < height-len(foot)-1 {
		lines = append(lines, "")
	}
	return "\x1b[H" + strings.Join(append(lines, foot...), "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

func (s *screen) foot(width int) (foot []string) {
	told := ""
	switch {
	case s.cut, s.changes > 0 && s.sent == 0:
		told = fmt.Sprintf("while cut: %d changes on the node, none sent yet", s.changes)
	case s.changes > 0:
		told = fmt.Sprintf("while cut: %d changes on the node, %d sent when it was back", s.changes, s.sent)
	}
	link := "cut the link"
	if s.cut {
		link = "mend the link"
	}
	foot = []string{clip(told, width)}
	if n := len(s.cloud.notes); n > 0 {
		foot = append(foot, clip(printable(s.cloud.notes[n-1], 200), width))
	}
	foot = append(foot, clip("l lamp  d 40 changes on the node  c "+link+"  k kill the node  q quit", width))
	for _, command := range s.d.commands() {
		foot = append(foot, folded(command, width)...)
	}
	return foot
}

// folded is a command line on lines that are no wider, which can be copied together.
func folded(command string, width int) (lines []string) {
	line := ""
	for i, word := range strings.Split(command, " ") {
		switch {
		case i == 0:
			line = word
		case len(line)+1+len(word)+len(" \\") > width:
			lines, line = append(lines, line+" \\"), "    "+word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// wire is the network between node and hub: a proxy that can be cut.
type wire struct {
	to string
	l  net.Listener

	mu     sync.Mutex
	broken bool
	conns  map[net.Conn]bool
}

func newWire(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{to: to, l: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(conn)
		}
	}()
	return w, nil
}

func (w *wire) carry(a net.Conn) {
	defer a.Close()
	b, err := net.DialTimeout("tcp", w.to, time.Second)
	if err != nil {
		return
	}
	defer b.Close()
	w.mu.Lock()
	broken := w.broken
	if !broken {
		w.conns[a], w.conns[b] = true, true
	}
	w.mu.Unlock()
	if broken {
		return
	}
	go func() {
		_, _ = io.Copy(a, b)
		_ = a.Close()
	}()
	_, _ = io.Copy(b, a)
	w.mu.Lock()
	delete(w.conns, a)
	delete(w.conns, b)
	w.mu.Unlock()
}

// cut breaks all connections and lets none through, until it is mended.
func (w *wire) cut(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = yes
	for conn := range w.conns {
		_ = conn.Close()
	}
}

// kill ends a program as a power cut does; it is started again.
func (g *processes) kill(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.all {
		if p.name == name {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}
