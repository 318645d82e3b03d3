// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// damageKinds are what becomes of files.
var damageKinds = map[string]func([]byte) []byte{
	"empty":     func([]byte) []byte { return nil },
	"cut short": func(b []byte) []byte { return b[:20] },
	"garbage":   func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), len(b)/8+1)[:len(b)] },
	"a flipped bit": func(b []byte) []byte { // in something that was written, and not last
		flipped := bytes.Clone(b)
		for from := 0; ; {
			at := bytes.Index(b[from:], []byte("marker"))
			if at < 0 {
				return flipped
			}
			from += at + 1
			flipped[from] ^= 4
		}
	},
}

// Damaged files: the program doesn't start, names the file, and says what to do. With
// the file put back it is as it was.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("meter", "{name: a}") + strings.Replace(stand.DeviceManifests("meter", "by-hand", "meter-1"), "{name: meter-1}", "{name: meter-1, labels: {is: marker}}", 1))
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	for _, value := range []string{"marker", "last"} {
		require.NoError(t, s.Publish(core, "v1/nodes/n1/devices/meter-1/reported/a", value))
		for _, c := range []*client.Client{hub, core} {
			require.NoError(t, c.Publish(t.Context(), client.Message{Topic: "own/" + value, Payload: []byte(value), QoS: 1, Retain: true}))
		}
	}
	s.InStep()
	for _, c := range []struct {
		program  string
		end      func(string) error
		patterns []string
	}{
		{"hub", s.Term, []string{"log/*.log"}},
		{"core", s.Crash, []string{"tree/*.log", "broker/*.log"}},
		{"core", s.Term, []string{"tree/core.db"}}, // where the log has gone
	} {
		program := c.program
		require.NoError(t, c.end(program))
		for _, pattern := range c.patterns {
			files, err := filepath.Glob(filepath.Join(s.Dir, program, pattern))
			require.NoError(t, err)
			require.NotEmpty(t, files, pattern)
			good, err := os.ReadFile(files[0])
			require.NoError(t, err)
			for what, damage := range damageKinds {
				t.Run(program+" "+pattern+" "+what, func(t *testing.T) {
					bad := damage(good)
					require.NotEqual(t, good, bad)
					require.NoError(t, os.WriteFile(files[0], bad, 0o600))
					says := failsToStart(t, s, program)
					require.Contains(t, says, files[0])
					require.Contains(t, says, "restore")
					require.Contains(t, says, "move it away")
					require.NoError(t, os.WriteFile(files[0], good, 0o600))
				})
			}
		}
		s.Up(program)
	}
	s.InStep()
	s.Watch(s.Hub.MQTT, "#", nil).Await("own/marker", "marker")
	s.Watch(s.Core(), "#", nil).Await("v1/nodes/n1/devices/meter-1/reported/a", "last")
}

// failsToStart starts a program that must end by itself, with an error, and returns
// the end of its log.
func failsToStart(t *testing.T, s *stand.Stand, name string) string {
	t.Helper()
	err := s.Start(t.Context(), name)
	require.ErrorContains(t, err, "exit status 1")
	require.NoError(t, s.Doom(name))
	text, err := os.ReadFile(s.LogFile(name))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// Two processes can't use one data directory, and the second says who is there.
func TestTwoOnOneDirectory(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	_, err := s.AddNode("n2", 1)
	require.NoError(t, err)
	for first, second := range map[string]string{"hub": "core@n2", "core": "core@n2"} {
		dir := filepath.Join(s.Dir, first)
		require.Error(t, s.Start(t.Context(), second, "--data-dir", dir))
		says := failsToStart(t, s, second)
		program := map[string]string{"hub": "cloudhub", "core": "edgecore"}[first]
		require.Contains(t, says, fmt.Sprintf("%s is in use by %s, process %d", dir, program, s.Pid(first)))
	}
}

// A program whose connections use up the file descriptors that there are for them serves those who are connected, closes
// each other one at once, says so without spinning or flooding its log, and takes others when there is room again.
func TestOutOfFiles(t *testing.T) {
	t.Parallel()
	const (
		files = 64
		short = "file descriptors are short"
	)
	for _, name := range []string{"hub", "core"} {
		t.Run(name, func(t *testing.T) {
			s := stand.New(t, 1)
			s.Wrap(name, "prlimit", "--nofile="+strconv.Itoa(files)+":"+strconv.Itoa(files))
			s.Up("hub", "core")
			broker := map[string]string{"hub": s.Hub.MQTT, "core": s.Core()}[name]
			known := s.Watch(broker, "seen", nil)
			pub := s.Client(broker, nil)
			var crowd []net.Conn
			for range 2 * files {
				c, err := net.DialTimeout("tcp", broker, stand.WaitTimeout)
				require.NoError(t, err) // the kernel takes them, whatever the program then does
				crowd = append(crowd, c)
			}
			s.Eventually(stand.WaitTimeout, func() error { return requireLogged(s, name, short) })
			last := crowd[len(crowd)-1]
			require.NoError(t, last.SetReadDeadline(time.Now().Add(stand.WaitTimeout)))
			_, err := last.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "neither taken nor refused")
			before, began := cpuTime(t, s.Pid(name)), time.Now()
			for i := 0; time.Since(began) < 2*time.Second; i++ {
				value := strconv.Itoa(i)
				require.NoError(t, pub.Publish(t.Context(), client.Message{Topic: "seen", Payload: []byte(value), QoS: 1, Retain: true}))
				known.Await("seen", value)
				time.Sleep(20 * time.Millisecond) // an idle client's pace: what else is used is spinning
			}
			require.Less(t, cpuTime(t, s.Pid(name))-before, time.Since(began)/2, "it spins")
			text, err := os.ReadFile(s.LogFile(name))
			require.NoError(t, err)
			require.NotContains(t, string(text), "too many open files", "nothing is left for the program's own work")
			require.Less(t, strings.Count(string(text), short), 3, "it floods its log")
			for _, c := range crowd {
				_ = c.Close()
			}
			s.Client(broker, nil)
			s.InStep()
		})
	}
}

func requireLogged(s *stand.Stand, name, what string) error {
	text, err := os.ReadFile(s.LogFile(name))
	if err == nil && !strings.Contains(string(text), what) {
		err = errors.New(name + " does not say " + what)
	}
	return err
}

// cpuTime is what a process has used of the processor.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return time.Duration(user+system) * time.Second / 100 // ticks, as Linux has always counted for programs
}

// The soft limit of open files is what a login happens to have; the hard one is what the
// administrator allows, and what is used.
func TestAllFilesThatAreAllowed(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Wrap("hub", "prlimit", "--nofile=100:1000")
	s.Up("hub")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.Pid("hub")))
	require.NoError(t, err)
	require.Regexp(t, `Max open files +(999|1000) +1000 `, string(text)) // Go's runtime leaves one
}
