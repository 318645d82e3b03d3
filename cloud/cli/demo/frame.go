// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/cli/tree"
)

func (s *demoScreen) draw() {
	width, height := s.size()
	frame := s.frame(width, height)
	if frame != s.lastFrame { // drawing clears the terminal's selection
		fmt.Fprint(s.out, frame)
		s.lastFrame = frame
	}
}

func (s *demoScreen) frame(width, height int) string {
	on := terminal.ColoursOf(s.out)
	how, code := "cloud and edge are in step", terminal.Green
	switch {
	case s.linkCut:
		how, code = "the link is cut", terminal.Red
	case s.edge.Down != "", !s.killedAt.IsZero():
		how, code = "the node is down", terminal.Red
	case s.cloud.Down != "":
		how, code = "the hub is down", terminal.Red
	case !s.isInStep():
		how, code = "catching up", terminal.Yellow
	}
	column := min(20, max(8, (width-26)/2))
	topic := min(36, max(12, width-2*column-1))
	line := func(a, b, c, mark string) string {
		return terminal.Shorten(terminal.Pad(terminal.Shorten(a, topic-1), topic)+terminal.Pad(terminal.Shorten(b, column-1), column)+terminal.Pad(terminal.Shorten(c, column-1), column)+mark, width)
	}
	value := func(v *tree.View, key string) string {
		if text, ok := v.Values[key]; ok {
			return terminal.Printable(text.Value, column-1)
		}
		return "–"
	}
	lines := []string{
		on.Paint(terminal.Bold, terminal.Shorten("Edgebus: node "+demoNode+" – ", width)) + on.Paint(code, how),
		terminal.Shorten(firstFitting(width, s.d.pageLines()...), width),
		on.Paint(terminal.Faint, line(firstFitting(topic-1, "= same  ≠ not yet  ↑ overridden", "= same ≠ not yet ↑ own"), "CLOUD", "EDGE", "")),
	}
	keys := s.shownKeys()
	foot := s.foot(width, height-len(lines)-1-min(len(keys), max(4, height/2-2)))
	room := max(1, height-len(lines)-len(foot)-1)
	for i, key := range keys {
		if i == room-1 && len(keys) > room {
			lines = append(lines, terminal.Shorten(fmt.Sprintf("… %d more", len(keys)-i), width))
			break
		}
		mark, paint := "=", ""
		switch {
		case s.overridden(key):
			mark = "↑"
		case s.differs(key):
			mark, paint = "≠", terminal.Yellow
		}
		text := line(strings.TrimPrefix(key, "devices/"), value(s.cloud, key), value(s.edge, key), mark)
		if paint != "" {
			text = on.Paint(paint, text)
		}
		lines = append(lines, text)
	}
	for len(lines) < height-len(foot)-1 {
		lines = append(lines, "")
	}
	lines = lines[:min(len(lines), max(1, height-len(foot)-1))]
	return "\x1b[H" + strings.Join(append(lines, foot...), "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

// firstFitting is the first text that is not wider than the width, or else the last.
func firstFitting(width int, texts ...string) string {
	for _, text := range texts {
		if utf8.RuneCountInString(text) <= width {
			return text
		}
	}
	return texts[len(texts)-1]
}

// foot is what stands below the values: the outcome of the last key, the keys and, as far as room goes, commands to try.
func (s *demoScreen) foot(width, room int) (foot []string) {
	told := ""
	switch {
	case !s.killedAt.IsZero():
		told = "the node was killed: its values are those that it had"
	case s.linkCut, s.changedCount > 0:
		told = fmt.Sprintf("the link is cut: %d changes on the node, none sent yet", s.changedCount)
		if s.linkBack {
			told = fmt.Sprintf("the link is back: %d changes on the node, %d sent", s.changedCount, s.sentCount)
		}
	case time.Now().Before(s.keyOutcomeUntil):
		told = s.keyOutcome
	}
	foot = append(foot, wrapText(width, told)...)
	if n := len(s.cloud.Notes); n > 0 {
		foot = append(foot, wrapText(width, terminal.Printable(s.cloud.Notes[n-1], 200))...)
	}
	link := "cut the link"
	if s.linkCut {
		link = "restore the link"
	}
	foot = append(foot, wrapWords(width, "l lamp", "d 40 changes on the node", "c "+link, "k kill the node", "q quit")...)
	commands := s.d.commands()
	if s.overridden("devices/lamp/desired/brightness") {
		commands = append([]string{"# ↑ the node's own value is in force until it is cleared:", s.d.clearOverrideCommand()}, commands...)
	}
	for _, command := range commands {
		lines := wrapCommand(command, width)
		if len(foot)+len(lines) > room {
			break
		}
		foot = append(foot, lines...)
	}
	return foot
}

// wrapText is a text in as many lines of a width as it takes; one, empty, if there is none.
func wrapText(width int, text string) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, terminal.Shorten(line, width))
}

// wrapWords puts words side by side, into as many lines of a width as it takes.
func wrapWords(width int, words ...string) (lines []string) {
	line := ""
	for _, word := range words {
		if line != "" && utf8.RuneCountInString(line)+2+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += "  "
		}
		line += word
	}
	return append(lines, terminal.Shorten(line, width))
}

// wrapCommand breaks a command line into lines of at most width, which can be copied together. Each line of a comment is one.
func wrapCommand(command string, width int) (lines []string) {
	if comment, is := strings.CutPrefix(command, "# "); is {
		for _, line := range wrapText(width-len("# "), comment) {
			lines = append(lines, "# "+line)
		}
		return lines
	}
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
