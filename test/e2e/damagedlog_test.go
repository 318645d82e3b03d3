// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// The data directory goes while the programs run: removed, emptied or moved. They aren't ready then, refuse
// what they would have to store, and doctor says why.
func TestADataDirectoryThatIsGoneIsTold(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".away") },
		"emptied": func(dir string) error {
			entries, err := os.ReadDir(dir)
			for _, e := range entries {
				if err == nil {
					err = os.RemoveAll(filepath.Join(dir, e.Name()))
				}
			}
			return err
		},
		"log removed": func(dir string) error {
			logs, err := filepath.Glob(filepath.Join(dir, map[string]string{"core": "broker", "hub": "log"}[filepath.Base(dir)], "*.log"))
			if err == nil {
				err = os.Remove(logs[0])
			}
			return err
		},
	} {
		t.Run(how, func(t *testing.T) {
			s := stand.New(t, 1)
			s.Up("hub", "core")
			s.Create(stand.ModelManifest("lamp", "{name: power}") + stand.DeviceManifests("lamp", "virtual", "lamp"))
			s.InStep()
			for program, at := range map[string]struct{ mqtt, http, topic string }{
				"core": {s.Core(), s.Node("n1").HTTP, "v1/nodes/n1/devices/lamp/telemetry/t"},
				"hub":  {s.Hub.MQTT, s.Hub.HTTP, ""},
			} {
				c := s.Client(at.mqtt, nil)
				dir := filepath.Join(s.Dir, program)
				require.DirExists(t, dir)
				require.NoError(t, lose(dir))
				s.Eventually(stand.WaitTimeout, func() error { return requireStatus(at.http+"/readyz", http.StatusOK, false) })
				require.Error(t, c.Publish(t.Context(), client.Message{Topic: "own/a", Payload: []byte("x"), QoS: 1, Retain: true}))
				if at.topic != "" {
					require.Error(t, s.Publish(c, at.topic, "x"))
				}
				require.NoError(t, requireStatus(at.http+"/healthz", http.StatusOK, true))
			}
			s.Eventually(stand.WaitTimeout, func() error { // a write that fails may be known before that its file is gone
				text, err := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "edgebus"),
					"doctor", "n1", "--hub", "http://"+s.Hub.HTTP, "--core", "http://"+s.Node("n1").HTTP).CombinedOutput()
				require.Error(t, err, "something is wrong")
				for _, says := range []string{"cloudhub has lost its files: ", "edgecore has lost its files: ", "while it was in use"} {
					if !strings.Contains(string(text), says) {
						return fmt.Errorf("%q is not in %s", says, text)
					}
				}
				return nil
			})
			log, err := os.ReadFile(s.LogFile("core"))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(log), "the data directory is not what it was"))
			s.Doom("core")
			s.Doom("hub")
		})
	}
}

// requireStatus says whether an address answers with a status, or with another one.
func requireStatus(address string, code int, is bool) error {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+address, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if (answer.StatusCode == code) != is {
		return fmt.Errorf("%s answers %s", address, answer.Status)
	}
	return nil
}

// The last write of a log is damaged although it was acknowledged: check and the program refuse it by the file's name, and say what to do. Who
// chooses to go on with what is left is told what that is, at error level.
func TestADamagedEndOfALogIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("core")
	c := s.Client(s.Core(), nil)
	require.NoError(t, c.Publish(t.Context(), client.Message{Topic: "own/a", Payload: []byte("value"), QoS: 1, Retain: true}))
	require.NoError(t, s.Crash("core"))
	dir := filepath.Join(s.Dir, "core")
	logs, err := filepath.Glob(filepath.Join(dir, "broker", "*.log"))
	require.NoError(t, err)
	text, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	text[len(bytes.TrimRight(text, "\x00"))-6] ^= 4 // zeros follow, which the file has grown by
	require.NoError(t, os.WriteFile(logs[0], text, 0o600))
	check := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "edgebus"), "check", dir).CombinedOutput()
		return string(out), err
	}
	said, err := check()
	require.Error(t, err, said)
	require.Contains(t, said, logs[0]+" has lost its end")
	confirmed := filepath.Join(dir, "broker", "confirmed")
	require.Contains(t, said, "remove "+confirmed+" to go on with what is left")
	require.Error(t, s.Start(t.Context(), "core"))
	require.NoError(t, os.Remove(confirmed))
	said, err = check()
	require.Error(t, err, said)
	require.Contains(t, said, "unless power was cut")
	require.NoError(t, s.Start(t.Context(), "core"))
	log, err := os.ReadFile(s.LogFile("core"))
	require.NoError(t, err)
	require.Regexp(t, `"level":"error".*unless power was cut.*what is damaged at its end is dropped`, string(log))
	require.NoError(t, s.Term("core"))
	said, err = check()
	require.NoError(t, err, said)
}
