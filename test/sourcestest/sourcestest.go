// SPDX-License-Identifier: Apache-2.0

// Package sourcestest has the git repositories and registries that tests read: git's own program serves the repositories. It is not
// for programs.
package sourcestest

import (
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
)

// Git is a git repository, config.git, that is changed in its work tree.
type Git struct {
	t   testing.TB
	Dir string
}

// NewGit makes an empty repository with the branch main.
func NewGit(t testing.TB) *Git {
	t.Helper()
	g := &Git{t, filepath.Join(t.TempDir(), "config.git")}
	require.NoError(t, os.Mkdir(g.Dir, 0o755))
	g.Run("init", "-q", "-b", "main")
	return g
}

// Run runs git in the repository, and returns what it prints.
func (g *Git) Run(args ...string) string {
	g.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = g.Dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, string(out))
	return strings.TrimSpace(string(out))
}

// Write writes a file.
func (g *Git) Write(name, text string, mode os.FileMode) {
	g.t.Helper()
	at := filepath.Join(g.Dir, name)
	require.NoError(g.t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(g.t, os.WriteFile(at, []byte(text), mode))
}

// Commit commits all that has changed, and returns the commit.
func (g *Git) Commit() string {
	g.t.Helper()
	g.Run("add", "-A")
	g.Run("commit", "-q", "--allow-empty", "-m", "x")
	return g.Run("rev-parse", "HEAD")
}

// Handler serves the repository at /config.git.
func (g *Git) Handler() http.Handler {
	g.t.Helper()
	return &cgi.Handler{Path: filepath.Join(g.Run("--exec-path"), "git-http-backend"), Env: []string{
		"GIT_PROJECT_ROOT=" + filepath.Dir(g.Dir), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
}

// Serve serves the repository without TLS and credentials until the test ends, and returns its address.
func (g *Git) Serve() string {
	g.t.Helper()
	server := httptest.NewServer(g.Handler())
	g.t.Cleanup(server.Close)
	return server.URL + "/config.git"
}

// Registry serves an empty registry without TLS until the test ends or stop is called, and returns its host.
func Registry(t testing.TB) (host string, stop func()) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), server.Close
}
