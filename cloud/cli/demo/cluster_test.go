// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestAProgramThatIsHeldIsStartedWhenItIsReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Hour
	g.onExit = func(err error) { t.Errorf("given up: %v", err) }
	said := make(chan string, 1)
	g.say = func(text string) { said <- text }
	up := filepath.Join(dir, "up")
	require.NoError(t, g.start("held", []string{"sh", "-c", "mkdir up; exec sleep 300"}, dir))
	for range 2 * mostRestarts {
		require.Eventually(t, func() bool { return fileExists(up) }, 30*time.Second, time.Millisecond)
		g.mu.Lock()
		before := g.all[0].cmd
		g.mu.Unlock()
		g.hold("held")
		require.True(t, g.isHeld("held"))
		require.Eventually(t, func() bool { return isProcessGone(strconv.Itoa(before.Process.Pid)) }, 30*time.Second, time.Millisecond)
		require.NoError(t, os.Remove(up))
		g.release("held")
		require.False(t, g.isHeld("held"))
	}
	require.Eventually(t, func() bool { return fileExists(up) }, 30*time.Second, time.Millisecond)
	g.hold("held")
	require.NoError(t, g.stop(), "also while one is held")
	require.Empty(t, said, "it was no accident")
}

// Without a quorum no hub serves; the one address leads to one that says so.
func TestTheOneAddressLeadsToAHubThatSaysWhyNoneServes(t *testing.T) {
	t.Parallel()
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no quorum", http.StatusServiceUnavailable)
	}))
	defer hub.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &clusterState{serving: -1, says: []string{"", hubStandsBy, hubStandsBy}}
	go s.lead(t.Context(), l, []string{"127.0.0.1:1", hub.Listener.Addr().String(), "127.0.0.1:1"})
	answer, err := http.Get("http://" + l.Addr().String())
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
}

// Who kills two of the log's servers, and ends the demo then, sees no failure: a hub that waits for the log isn't waited for.
func TestTheClusterEndsWithoutItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &clusterDemo{demo: demo{out: io.Discard, dataDir: dir, group: newProcesses(filepath.Join(dir, "logs"))}}
	c.chooseAddresses()
	for _, s := range c.servers {
		require.NoError(t, c.group.start(s.name, []string{"sleep", "300"}, dir))
	}
	require.NoError(t, c.group.start(c.hubs[0].name, []string{"sh", "-c", "trap '' TERM; mkdir up; while :; do sleep 0.05; done"}, dir))
	require.Eventually(t, func() bool { return fileExists(filepath.Join(dir, "up")) }, 30*time.Second, time.Millisecond)
	c.press('n')
	c.press('n')
	require.NoError(t, c.finish(t.Context()))
	require.NoError(t, c.group.stop())
}

// What is missing is told apart from what came once more.
func TestNumbersThatAreMissingAreCounted(t *testing.T) {
	l := &clusterLoad{}
	for _, n := range []string{"1", "2", "2", "somebody else's", "3", "2", "6", "7"} {
		l.receive([]byte(n))
	}
	l.acked = 9
	require.Equal(t, "QoS 1: 9 messages acknowledged, 5 came to a durable session, 2 missing, 2 came twice, as QoS 1 may", l.lines()[0])
	require.False(t, l.hasAll())
	require.Equal(t, 4, l.lost(), "the two that are on their way as well, when no more comes")
}

func TestWhatAFaultLedToIsTold(t *testing.T) {
	at := time.Now()
	f := clusterFault{name: "hub-2", killed: at}
	require.Equal(t, "hub-2 was killed: nothing is acknowledged", f.String())
	f.served, f.serves = at.Add(1800*time.Millisecond), "hub-1"
	require.False(t, f.isOver())
	f.acked, f.turned = at.Add(2*time.Second), at.Add(3*time.Second)
	require.True(t, f.isOver())
	require.Equal(t, "hub-2 was killed: hub-1 served after 1.8s, a message was acknowledged after 2s, the lamp reported after 3s", f.String())
	f.name = "nats-1"
	require.Equal(t, "nats-1 was killed: a message was acknowledged after 2s, the lamp reported after 3s", f.String())
}

// On a small terminal the states, the figures and the keys are whole, and commands are shown as room goes.
func TestTheClusterIsWholeOnASmallTerminal(t *testing.T) {
	c := &clusterDemo{demo: demo{out: io.Discard, hubMQTT: "127.0.0.1:1883", hubHTTP: "127.0.0.1:8080", group: newProcesses(t.TempDir())}}
	c.chooseAddresses()
	c.state.serving, c.state.says, c.state.whole = 1, []string{"", hubServes, hubStandsBy}, []bool{true, true, false}
	c.fault = clusterFault{name: "hub-1", killed: time.Now()}
	c.load.acked, c.load.got = 1234, 1234
	for _, size := range [][2]int{{80, 24}, {60, 18}} {
		lines := strings.Split(regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]").ReplaceAllString(c.frame(size[0], size[1], "12:00:00 hub-1 is killed"), ""), "\r\n")
		require.LessOrEqual(t, len(lines), size[1])
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line), size[0], line)
		}
		all := strings.Join(lines, " ")
		for _, text := range []string{
			"hub-2 serves", "hub-1 does not answer", "hub-3 stands by", "nats-3 not healthy", "the page: http://127.0.0.1:8080/", "1234 messages acknowledged", "hub-1 was killed", "12:00:00 hub-1 is killed", "q quit",
		} {
			require.Contains(t, all, text)
		}
	}
}
