package configs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEditChangesSettingsAndNothingElse(t *testing.T) {
	for name, tt := range map[string]struct{ before, after string }{
		"no file":  {"", "link:\n  tls:\n    ca: /x\nnode:\n  name: n1\n"},
		"others":   {"# mine\nlog:\n  level: debug # now\nlink:\n  rate: 10KiB\n", "# mine\nlog:\n  level: debug # now\nlink:\n  rate: 10KiB\n  tls:\n    ca: /x\nnode:\n  name: n1\n"},
		"the same": {"node: {name: old}\nlink:\n  tls:\n    ca: old\n", "node: {name: n1}\nlink:\n  tls:\n    ca: /x\n"},
		"empty":    {"link:\n", "link:\n  tls:\n    ca: /x\nnode:\n  name: n1\n"},
	} {
		file := filepath.Join(t.TempDir(), "core.yaml")
		if tt.before != "" {
			require.NoError(t, os.WriteFile(file, []byte(tt.before), 0o600))
		}
		require.NoError(t, Edit(file, Setting{"link.tls.ca", "/x"}, Setting{"node.name", "n1"}), name)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, tt.after, string(text), name)
		if info, err := os.Stat(file); tt.before != "" {
			require.NoError(t, err)
			require.EqualValues(t, 0o600, info.Mode().Perm(), name)
		}
	}
	file := filepath.Join(t.TempDir(), "core.yaml")
	require.NoError(t, os.WriteFile(file, []byte("# nothing but words\n"), 0o600))
	require.NoError(t, Edit(file, Setting{"node.name", "n1"}))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "# nothing but words\n")
	require.NoError(t, os.WriteFile(file, []byte("link: x\n"), 0o600))
	require.ErrorContains(t, Edit(file, Setting{"link.server", "y"}), "there is a value where keys should be")
}
