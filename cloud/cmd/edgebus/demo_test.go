package main

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Whatever was set before and however often the key is pressed: what the node has in the end is not what the hub has.
func TestChangesOfTheDemoLeaveSomethingToSend(t *testing.T) {
	for has := range 101 {
		for level := range 101 {
			before := level
			for range 40 {
				level = nextBrightness(level, strconv.Itoa(has))
				require.NotEqual(t, has, level)
				require.NotEqual(t, before, level)
				require.True(t, level >= 1 && level <= 100, level)
				before = level
			}
		}
	}
}

// On a small terminal nothing that tells what a key did is cut off.
func TestTheDemoIsWholeOnASmallTerminal(t *testing.T) {
	s := &demoScreen{d: &demo{}, out: io.Discard, cloud: newView(demoNode), edge: newView(demoNode), keyOutcomeUntil: time.Now().Add(time.Hour)}
	for i := range 9 {
		for _, v := range []*treeView{s.cloud, s.edge} {
			v.values[fmt.Sprintf("devices/lamp/reported/p%d", i)] = value{Value: "1"}
		}
	}
	s.cloud.notes = []string{"12:00:00 edgecore ended unexpectedly (signal: killed), and is started again in 200ms"}
	for _, news := range []string{"the node was killed: its broker was away for 600ms, and has all its values", "the link was cut: 44 changes on the node, 4 sent when it was back"} {
		s.keyOutcome = news
		lines := strings.Split(regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]").ReplaceAllString(s.frame(50, 14), ""), "\r\n")
		require.LessOrEqual(t, len(lines), 14)
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 50, line)
			if !regexp.MustCompile(`^… \d+ more$`).MatchString(line) {
				require.NotContains(t, line, "…")
			}
		}
		all := strings.Join(lines, " ")
		require.Contains(t, all, news)
		require.Contains(t, all, "q quit")
		require.Contains(t, all, "= same ≠ not yet ↑ own")
		require.Contains(t, all, s.cloud.notes[0])
	}
}
