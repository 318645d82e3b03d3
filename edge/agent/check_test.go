// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/files"
)

// Damage has another exit code than what keeps the agent's data from being read.
// TestDamageOfTheFilesIsToldWithItsRemedy: the agent doesn't start, says what to do, and that works.
func TestDamageOfTheFilesIsToldWithItsRemedy(t *testing.T) {
	half := func(p string) error {
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return os.WriteFile(p, text[:len(text)/2], 0o600)
	}
	for what, c := range map[string]struct {
		file   string
		damage func(path string) error
	}{
		"the journal is missing":  {"journal.json", os.Remove},
		"the journal is half":     {"journal.json", half},
		"the journal is empty":    {"journal.json", func(p string) error { return os.Truncate(p, 0) }},
		"the manifest is missing": {"manifest-*.json", os.Remove},
		"the manifest is half":    {"manifest-*.json", half},
		"the manifest is empty":   {"manifest-*.json", func(p string) error { return os.Truncate(p, 0) }},
	} {
		t.Run(what, func(t *testing.T) {
			r := newTestAgent(t, nil)
			r.send("spec", specOfVersion("1", textFile("/etc/a", "one"), textFile("/etc/b", "two")))
			r.settle()
			r.stop()
			paths, err := filepath.Glob(filepath.Join(r.o.Config.Data.Dir, "files", c.file))
			require.NoError(t, err)
			require.Len(t, paths, 1)
			require.NoError(t, c.damage(paths[0]))

			_, err = openFiles(r.o.withDefaults())
			require.ErrorAs(t, err, new(files.DamagedError))
			require.ErrorContains(t, err, paths[0])
			dir := filepath.Join(r.o.Config.Data.Dir, "files")
			require.ErrorContains(t, err, "Move the directory "+dir+" away, and start the agent again")
			require.NoError(t, os.Rename(dir, dir+".damaged"))
			require.NoError(t, os.WriteFile(filepath.Join(r.o.Config.Root, "etc/a"), []byte("by hand"), 0o640))
			delete(r.sent, "spec") // the core is away, too

			r.start()
			r.settle()
			require.Equal(t, "one two", r.file("etc/a")+" "+r.file("etc/b"))
			require.Equal(t, "1", r.reportNow(nil).RenderedVersion)
			r.send("spec", specOfVersion("2"))
			r.settle()
			require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
			require.NotContains(t, r.condition("SpecApplied"), "False")
		})
	}
}

// A state of another format is refused, and stays as it is.
func TestAnAgentRefusesAStateOfAnotherFormat(t *testing.T) {
	r := newTestAgent(t, nil)
	r.stop()
	state := filepath.Join(r.o.Config.Data.Dir, stateName)
	for path, start := range map[string]func(o Options) error{
		state: func(o Options) error { _, err := newAgent(o, r.store); return err },
		filepath.Join(r.o.Config.Data.Dir, "upgrade", stateName): func(o Options) error {
			a := assemble(o, r.store)
			a.bus = r.bus
			return a.openUpgrades()
		},
		filepath.Join(r.o.Config.Data.Dir, "files", "journal.json"): func(o Options) error { _, err := openFiles(o); return err },
	} {
		text := []byte(`{"format":99}`)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, text, 0o600))
		err := start(r.o.withDefaults())
		require.ErrorContains(t, err, path+" has the format 99, and this program reads the format 1")
		require.Regexp(t, "[mM]ove ", err.Error())
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, left)
	}
}

func TestExitCodesOfCheck(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		code             int
		says             string
	}{
		{name: "nothing is there yet", says: "nothing is damaged"},
		{name: "the state", file: "state.json", text: "{", code: 1, says: "state.json is damaged"},
		{name: "the state of upgrades", file: "upgrade/state.json", text: "[]", code: 1, says: "upgrade/state.json is damaged"},
		{name: "the journal of files", file: "files/journal.json", text: "{", code: 1, says: "journal.json is damaged"},
		{name: "a state of another format", file: "state.json", text: `{"format":99}`, code: 3, says: "has the format 99, and this program reads the format 1: move it away"},
		{name: "a state of upgrades of another format", file: "upgrade/state.json", text: `{"version":"v1"}`, code: 3, says: "has the format 0, and this program reads the format 1"},
		{name: "a journal of files of another format", file: "files/journal.json", text: `{"format":99,"new":1}`, code: 1, says: "has the format 99, and this program reads the format 1. Move the directory"},
		{name: "a state that can't be read", file: "state.json/x", code: 3, says: "can't be read"},
		{name: "a state of upgrades that can't be read", file: "upgrade/state.json/x", code: 3, says: "can't be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "agent")
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, c.file)), 0o700))
			if c.file != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600))
			} else {
				require.NoError(t, os.MkdirAll(dir, 0o700))
			}
			var out bytes.Buffer
			code := Main([]string{"check", "--config", os.DevNull, "--data-dir", dir, "--root", t.TempDir()}, &out, &out)
			require.Equal(t, c.code, code, out.String())
			require.Contains(t, out.String(), c.says)
		})
	}
	var out bytes.Buffer
	missing := filepath.Join(t.TempDir(), "missing")
	require.Equal(t, 3, Main([]string{"check", "--config", os.DevNull, "--data-dir", missing}, &out, &out), out.String())
	require.NoDirExists(t, missing, "it changes nothing")
	require.Equal(t, 2, Main([]string{"check", "--what"}, &out, &out), out.String())
}
