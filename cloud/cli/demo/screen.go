// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/tree"
)

// demoScreen is the demo on a terminal: the values in the hub's broker beside those in the node's, and keys that change
// values, cut the link and kill the node.
type demoScreen struct {
	d         *demo
	out       io.Writer
	size      func() (width, height int)
	link      *linkProxy
	cloud     *tree.View
	edge      *tree.View
	lastFrame string // the last frame

	linkCut                 bool
	changedCount, sentCount int // of topics that the edge owns: on the node while the link was cut, and at the hub since it is back
	linkBack                bool
	brightness              int

	killedAt        time.Time // when k was pressed, until the node is back
	brokerWasAway   bool      // since then its broker was seen to be away
	keyOutcome      string    // what the last key has led to; it is shown for keyOutcomeTime
	keyOutcomeUntil time.Time
}

// keyOutcomeTime is how long the outcome of a key stays on the screen.
const keyOutcomeTime = 20 * time.Second

// showOutcome shows the outcome of a key for a time.
func (s *demoScreen) showOutcome(format string, args ...any) {
	s.keyOutcome, s.keyOutcomeUntil = fmt.Sprintf(format, args...), time.Now().Add(keyOutcomeTime)
}

// screenEvent is a change at one of the two brokers, a key that was pressed, or a note.
type screenEvent struct {
	tree.Change
	side int
	key  byte
}

const (
	fromCloud = iota
	fromEdge
	fromKeyboard
)

// watchKeys reads keys from a terminal until it is closed. Until restore is called the terminal is in raw mode.
func watchKeys(ctx context.Context, in any, keys chan<- screenEvent) (restore func()) {
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
				case keys <- screenEvent{side: fromKeyboard, key: key}:
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

// run draws until ctx ends, q is pressed, or a broker refuses the connection.
func (s *demoScreen) run(ctx context.Context, in any, notes <-chan tree.Change) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make(chan screenEvent)
	for side, at := range []string{s.d.hubMQTT, s.d.coreMQTT} {
		changes, err := demoTree(at).Follow(ctx, demoNode)
		if err != nil {
			return err
		}
		go forwardChanges(ctx, changes, side, all)
	}
	go forwardChanges(ctx, notes, fromKeyboard, all)
	clients := map[string]*client.Client{}
	for name, at := range map[string]string{"cloud": s.d.hubMQTT, "edge": s.d.coreMQTT} {
		p := access.Target{MQTT: "mqtt://" + at}
		o, err := p.MQTTOptions("demo-" + name)
		if err != nil {
			return err
		}
		c, err := client.New(o)
		if err != nil {
			return err
		}
		go func() { _ = c.Run(ctx) }()
		clients[name] = c
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
			if c.Err != nil {
				return c.Err
			}
			if c.key == 'q' || c.key == 3 { // ctrl-C is no signal in raw mode
				return nil
			}
			s.handle(c, clients)
			timer.Reset(tree.RedrawInterval / 2)
		case <-timer.C:
			s.draw()
			timer.Reset(tree.IdleRedrawInterval) // the size may have changed
		}
	}
}

func forwardChanges(ctx context.Context, from <-chan tree.Change, side int, to chan<- screenEvent) {
	for {
		select {
		case c, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- screenEvent{Change: c, side: side}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// edgeOwned is whether the edge owns a topic.
func edgeOwned(key string) bool {
	return strings.HasPrefix(key, "devices/") && (strings.Contains(key, "/reported/") || strings.Contains(key, "/override/"))
}

func (s *demoScreen) handle(c screenEvent, clients map[string]*client.Client) {
	counts := c.Key != "" && edgeOwned(c.Key)
	switch c.side {
	case fromCloud:
		if counts && s.linkBack && s.cloud.Values[c.Key].Value != c.Value {
			s.sentCount++
		}
		s.cloud.Apply(c.Change)
		if s.linkBack && s.isInStep() { // later changes don't count
			s.linkBack = false
			if s.changedCount > 0 {
				s.showOutcome("the link was cut: %d changes on the node, %d sent when it was back", s.changedCount, s.sentCount)
				s.changedCount = 0
			}
		}
	case fromEdge:
		if counts && s.linkCut && s.edge.Values[c.Key].Value != c.Value {
			s.changedCount++
		}
		s.edge.Apply(c.Change)
	default:
		if c.Note != "" {
			s.cloud.Apply(c.Change)
		}
	}
	s.brokerWasAway = s.brokerWasAway || !s.killedAt.IsZero() && s.edge.Down != ""
	if s.brokerWasAway && s.edge.Down == "" {
		s.showOutcome("the node was killed: its broker was away for %s, and has all its values", time.Since(s.killedAt).Round(100*time.Millisecond))
		s.killedAt, s.brokerWasAway = time.Time{}, false
	}
	switch c.key {
	case 'l':
		on := "ON"
		if s.cloud.Values["devices/lamp/desired/power"].Value == "ON" {
			on = "OFF"
		}
		s.setDesired(clients["cloud"], "power", on)
	case 'd':
		has := s.cloud.Values["devices/lamp/reported/brightness"].Value
		for range 40 {
			s.brightness = nextBrightness(s.brightness, has)
			s.setDesired(clients["edge"], "brightness", fmt.Sprint(s.brightness))
		}
	case 'c':
		if s.linkCut = !s.linkCut; s.linkCut {
			s.changedCount, s.sentCount, s.linkBack = 0, 0, false
		} else {
			s.linkBack = true
		}
		s.link.setCut(s.linkCut)
	case 'k':
		s.d.group.kill("edgecore")
		s.killedAt = time.Now()
	}
}

// nextBrightness is the next brightness, of 1 to 100, that differs from the hub's, so that each change, also the last one,
// is one to be sent.
func nextBrightness(level int, has string) int {
	if level = level%100 + 1; fmt.Sprint(level) == has {
		level = level%100 + 1
	}
	return level
}

func (s *demoScreen) setDesired(by *client.Client, property, value string) {
	by.PublishAsync(client.Message{Topic: "v1/nodes/" + demoNode + "/devices/lamp/desired/" + property, Payload: []byte(value), QoS: 1}, func(err error) {
		if err != nil {
			_ = s.d.say(err.Error())
		}
	})
}

// shownKeys are the topics of the devices that one of the two has.
func (s *demoScreen) shownKeys() (keys []string) {
	for _, v := range []*tree.View{s.cloud, s.edge} {
		for key := range v.Values {
			if parts := strings.Split(key, "/"); parts[0] == "devices" && (len(parts) == 4 || len(parts) == 3 && parts[2] == "state") {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (s *demoScreen) isInStep() bool {
	return s.edge.Down == "" && s.cloud.Down == "" && s.cloud.Values["state"].Value == "online" && !slices.ContainsFunc(s.shownKeys(), s.differs)
}

// differs is whether the two have different values that will become equal; those of an overridden property may stay different.
func (s *demoScreen) differs(key string) bool {
	return s.cloud.Values[key].Value != s.edge.Values[key].Value && !s.overridden(key)
}

func (s *demoScreen) overridden(key string) bool {
	_, there := s.edge.Values[strings.Replace(key, "/desired/", "/override/", 1)]
	return there && strings.Contains(key, "/desired/")
}
