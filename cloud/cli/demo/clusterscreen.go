// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/cli/tree"
	"github.com/edgebus/edgebus/topics/backoff"
)

// tellChanges says each change of what hubs and servers are, and what became of each fault, until ctx ends.
func (c *clusterDemo) tellChanges(ctx context.Context) {
	var told, outcome string
	for more := true; more; {
		more = backoff.Sleep(ctx, statePause)
		if now := strings.Join(c.stateWords(), ", "); now != told {
			told = now
			_ = c.say(now)
		}
		if f := c.observe(); f.isOver() && f.String() != outcome {
			outcome = f.String()
			_ = c.say(strings.Join(append([]string{outcome}, c.load.lines()...), "\n"))
		}
	}
}

// stateWords say of each program what it is.
func (c *clusterDemo) stateWords() (all []string) {
	_, says, whole := c.state.now()
	for i, h := range c.hubs {
		what := "does not answer"
		switch {
		case c.group.isHeld(h.name):
			what = "killed"
		case i < len(says) && says[i] != "":
			what = says[i]
		}
		all = append(all, h.name+" "+what)
	}
	for i, s := range c.servers {
		what := "not healthy"
		switch {
		case c.group.isHeld(s.name):
			what = "killed"
		case i < len(whole) && whole[i]:
			what = "healthy"
		}
		all = append(all, s.name+" "+what)
	}
	return all
}

// hints are commands to try next.
func (c *clusterDemo) hints() []string {
	all := append([]string{"", "In another terminal:"}, c.commands()...)
	for i := range all[2:] {
		all[2+i] = "  " + all[2+i]
	}
	for _, h := range c.hubs {
		all = append(all, fmt.Sprintf("%s has MQTT at %s and HTTP at %s.", h.name, h.mqtt, h.http))
	}
	return append(all, c.hubMQTT+" and "+c.hubHTTP+" lead to the hub that serves.", "Data and logs are in "+c.dataKeptText()+".", "")
}

// commands lead to the hub that serves.
func (c *clusterDemo) commands() []string {
	hub, _ := c.portFlags()
	return []string{
		"mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/devices/+/reported/#'",
		"mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"# A durable session: end it, publish to work/1 with -q 1, kill a hub, and begin it again.",
		"mosquitto_sub" + hub + " -V 5 -c -q 1 -i mine -t work/+",
		"kubectl --server http://" + c.hubHTTP + " get devices",
		"curl http://" + c.hubs[1].http + "/readyz",
	}
}

// runScreen draws until ctx ends or q is pressed.
func (c *clusterDemo) runScreen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	notes := make(chan tree.Change, 64)
	c.demo.mu.Lock()
	c.notes = notes
	c.demo.mu.Unlock()
	defer func() {
		c.demo.mu.Lock()
		c.notes = nil
		c.demo.mu.Unlock()
	}()
	keys := make(chan screenEvent)
	defer watchKeys(ctx, c.in, keys)()
	fmt.Fprint(c.out, "\x1b[?25l\x1b[2J")
	defer fmt.Fprint(c.out, "\x1b[?25h\r\n")
	size, _ := terminal.Size(c.out)
	tick := time.NewTicker(tree.RedrawInterval)
	defer tick.Stop()
	note, last := "", ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-notes:
			note = time.Now().Format(time.TimeOnly) + " " + n.Note
		case e := <-keys:
			if e.key == 'q' || e.key == 3 { // ctrl-C is no signal in raw mode
				return nil
			}
			if text := c.press(e.key); text != "" {
				note = time.Now().Format(time.TimeOnly) + " " + text
			}
		case <-tick.C:
		}
		width, height := size()
		if frame := c.frame(width, height, note); frame != last { // drawing clears the terminal's selection
			fmt.Fprint(c.out, frame)
			last = frame
		}
	}
}

func (c *clusterDemo) frame(width, height int, note string) string {
	on := terminal.ColoursOf(c.out)
	serving, _, _ := c.state.now()
	head := on.Paint(terminal.Red, "no hub serves")
	if serving >= 0 {
		head = on.Paint(terminal.Green, c.hubs[serving].name+" serves")
	}
	lines := []string{on.Paint(terminal.Bold, "Edgebus: three hubs are one – ") + head}
	for i, text := range c.stateWords() {
		if i < len(c.hubs) {
			text = terminal.Pad(text, 24) + "  MQTT " + c.hubs[i].mqtt + "  HTTP " + c.hubs[i].http
		}
		text = terminal.Shorten(text, width)
		switch {
		case strings.Contains(text, " "+hubServes), strings.HasSuffix(text, " healthy") && !strings.HasSuffix(text, "not healthy"):
			text = on.Paint(terminal.Green, text)
		case !strings.Contains(text, " "+hubStandsBy):
			text = on.Paint(terminal.Red, text)
		}
		lines = append(lines, text)
	}
	lines = append(lines, terminal.Shorten("the page: http://"+c.hubHTTP+"/", width), terminal.Shorten("MQTT "+c.hubMQTT+" and HTTP "+c.hubHTTP+" lead to the hub that serves; each hub takes clients, too", width), "")
	for _, text := range append(c.load.lines(), c.observe().String(), note) {
		lines = append(lines, wrapText(width, text)...)
	}
	lines = append(lines, wrapWords(width, "k kill the hub that serves", "n kill a NATS server", "s start again what was killed", "q quit")...)
	for _, command := range append(c.commands(), "# data and logs: "+c.dataKeptText()) {
		more := wrapCommand(command, width)
		if len(lines)+len(more) > height {
			break
		}
		lines = append(lines, more...)
	}
	lines = lines[:min(len(lines), height)]
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
