// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/tree"
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
	s := &demoScreen{d: &demo{hubHTTP: "127.0.0.1:8080", coreHTTP: "127.0.0.1:10550"}, out: io.Discard, cloud: tree.NewView(demoNode), edge: tree.NewView(demoNode), keyOutcomeUntil: time.Now().Add(time.Hour)}
	for i := range 9 {
		for _, v := range []*tree.View{s.cloud, s.edge} {
			v.Values[fmt.Sprintf("devices/lamp/reported/p%d", i)] = tree.TopicValue{Value: "1"}
		}
	}
	s.cloud.Notes = []string{"12:00:00 edgecore ended unexpectedly (signal: killed), and is started again in 200ms"}
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
		require.Contains(t, lines[1], "the page: http://127.0.0.1:8080/")
		require.Contains(t, all, "= same ≠ not yet ↑ own")
		require.Contains(t, all, s.cloud.Notes[0])
	}
}

// Who has built the programs, and has other ports, can paste what the demo proposes into another terminal.
func TestWhatTheDemoProposesWorksInAnotherTerminal(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	d := &demo{hubMQTT: "127.0.0.1:1883", coreMQTT: "127.0.0.1:2883", hubHTTP: "127.0.0.1:18080"}
	mine, err := os.Executable()
	require.NoError(t, err)
	export := "export PATH=" + filepath.Dir(mine) + ":$PATH EDGEBUS_SERVER=http://127.0.0.1:18080"
	require.Equal(t, []string{export, "edgebus get devices"}, d.commands()[:2])
	require.Contains(t, d.hints(), "  "+export)

	require.NoError(t, os.Symlink(mine, filepath.Join(os.Getenv("PATH"), "edgebus")))
	d.hubHTTP = "127.0.0.1:8080"
	require.Equal(t, "edgebus get devices", d.commands()[0], "it finds all by itself")
}

func TestCommandsAreFolded(t *testing.T) {
	const command = "mosquitto_pub -p 12883 -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 40"
	lines := wrapCommand(command, 60)
	for _, line := range lines {
		require.LessOrEqual(t, len(line), 60)
	}
	require.Equal(t, command, strings.ReplaceAll(strings.Join(lines, "\n"), " \\\n    ", " "), "as a shell reads it")
	require.Equal(t, []string{command}, wrapCommand(command, 100))
	require.Equal(t, []string{"# data and logs: /tmp/edgebus-demo-1,", "# removed by q"}, wrapCommand("# data and logs: /tmp/edgebus-demo-1, removed by q", 40), "each line of a comment is one")
}
