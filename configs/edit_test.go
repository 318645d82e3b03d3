// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/password"
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
		require.NoError(t, EditFile(file, Setting{"link.tls.ca", "/x"}, Setting{"node.name", "n1"}), name)
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
	require.NoError(t, EditFile(file, Setting{"node.name", "n1"}))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "# nothing but words\n")
	require.NoError(t, os.WriteFile(file, []byte("link: x\n"), 0o600))
	require.ErrorContains(t, EditFile(file, Setting{"link.server", "y"}), "there is a value where keys should be")
}

func TestEditLeavesAliasesWhole(t *testing.T) {
	for name, c := range map[string]struct{ before, refused, after string }{
		"a value that another line uses": {
			"link:\n  tls: {ca: &ca /x}\nhttp:\n  tls: {clientCA: *ca}\n",
			"line 4: the alias *ca stands for line 2, which would be replaced", "",
		},
		"in a section that another line uses": {
			"link:\n  tls: &tls\n    ca: /x\nhttp:\n  tls: *tls\n",
			"link.tls.ca: line 2: the anchor &tls is used in line 5, which would change as well", "",
		},
		"in a section that is an alias": {"http:\n  tls: &tls {ca: /x}\nlink:\n  tls: *tls\n", "link.tls.ca: line 4: the alias *tls stands for line 2, which would change as well", ""},
		"in place of a section":         {"link: {tls: {ca: {x: &x 1}}}\nlog: {level: *x}\n", "line 2: the alias *x stands for line 1, which would be replaced", ""},
		"a value that is an alias":      {"http: {tls: {ca: &ca /x}}\nlink: {tls: {ca: *ca}}\n", "", "http: {tls: {ca: &ca /x}}\nlink: {tls: {ca: /new}}\n"},
		"an anchor that no line uses":   {"link: {tls: {ca: &ca /x}}\n", "", "link: {tls: {ca: /new}}\n"},
		"two anchors of a name":         {"log: {level: &a info}\nlink: {tls: {ca: &a /x}, rate: *a}\n", "line 2: the alias *a stands for line 2, which would be replaced", ""},
		"the first of them":             {"link: {tls: {ca: &a /x}}\nlog: {level: &a info, format: *a}\n", "", "link: {tls: {ca: /new}}\nlog: {level: &a info, format: *a}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "core.yaml")
			require.NoError(t, os.WriteFile(file, []byte(c.before), 0o600))
			err := EditFile(file, Setting{"link.tls.ca", "/new"})
			text, unread := os.ReadFile(file)
			require.NoError(t, unread)
			if c.refused != "" {
				require.ErrorContains(t, err, file+": "+c.refused)
				require.Equal(t, c.before, string(text))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.after, string(text))
		})
	}
	text, err := editSettings([]byte("link: {tls: {cert: &p /x, key: *p}}\n"), []Setting{{"link.tls.cert", "/y"}, {"link.tls.key", "/z"}})
	require.NoError(t, err)
	require.Equal(t, "link: {tls: {cert: /y, key: /z}}\n", string(text), "both are replaced")
	_, err = addUserTo([]byte("auth:\n  users: &u []\nhttp:\n  users: *u\n"), User{Name: "lamp"})
	require.ErrorContains(t, err, "line 2: the anchor &u is used in line 4")
}

// Of commands that run at once none undoes what another has written, and a file that is a symbolic link stays one.
func TestUsersAddedAtOnceAreAllThere(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "kept.yaml")
	require.NoError(t, os.WriteFile(elsewhere, []byte("# ours\n"), 0o600))
	file := filepath.Join(dir, "hub.yaml")
	require.NoError(t, os.Symlink(elsewhere, file))
	var all sync.WaitGroup
	failed := make([]error, 20)
	for i := range failed {
		all.Go(func() {
			failed[i] = AddUser[Hub]("cloudhub", file, User{Name: fmt.Sprint("u", i), Role: "operator", Nodes: []string{"*"}, PasswordHash: password.NewHash([]byte("word"))})
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(failed...))
	cfg, err := Load[Hub]("cloudhub", file, nil)
	require.NoError(t, err)
	require.Len(t, cfg.Auth.Users, len(failed))
	to, err := os.Readlink(file)
	require.NoError(t, err)
	require.Equal(t, elsewhere, to)
	text, err := os.ReadFile(elsewhere)
	require.NoError(t, err)
	require.Contains(t, string(text), "# ours")
	info, err := os.Stat(elsewhere)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
