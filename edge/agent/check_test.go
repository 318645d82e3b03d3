package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Damage has another exit code than what keeps the agent's data from being read.
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
