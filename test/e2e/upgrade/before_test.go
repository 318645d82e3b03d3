// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// releaseBefore is the newest release that the commit checked out follows, as the tags of a repository say; empty: there is none yet. A
// release's own commit follows the one before.
func releaseBefore(repository string) (tag string, err error) {
	cmd := exec.Command("git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD~1")
	cmd.Dir = repository
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	switch {
	case err == nil:
		return strings.TrimSpace(string(out)), nil
	case strings.Contains(said.String(), "No names found"), strings.Contains(said.String(), "No tags can describe"), strings.Contains(said.String(), "Not a valid object name"):
		return "", nil // or HEAD has no parent
	}
	return "", fmt.Errorf("git describe: %w: %s", err, said.String())
}

// sourcesBefore are the sources of the release before, below dir. Until there is one they are the present ones.
func sourcesBefore(repository, dir string) (sources string, err error) {
	tag, err := releaseBefore(repository)
	if err != nil || tag == "" {
		return repository, err
	}
	archive := exec.Command("git", "archive", "--format=tar", tag)
	archive.Dir = repository
	unpack := exec.Command("tar", "-x")
	unpack.Dir = filepath.Join(dir, tag)
	if err := os.MkdirAll(unpack.Dir, 0o755); err != nil {
		return "", err
	}
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		return "", err
	}
	if err := errors.Join(archive.Start(), unpack.Run(), archive.Wait()); err != nil {
		return "", fmt.Errorf("the sources of %s: %w", tag, err)
	}
	return unpack.Dir, nil
}

// storeFormatOf is the format of the core's store in sources.
func storeFormatOf(sources string) (int, error) {
	text, err := os.ReadFile(filepath.Join(sources, "edge", "store", "database.go"))
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^const Format = (\d+)$`).FindSubmatch(text)
	if found == nil {
		return 0, errors.New("edge/store/database.go has no constant Format")
	}
	return strconv.Atoi(string(found[1]))
}

func TestTheReleaseBeforeIsFoundByTags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	is := func(want string) {
		t.Helper()
		got, err := releaseBefore(dir)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	commit := func(format int) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "edge", "store"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "edge", "store", "database.go"), fmt.Appendf(nil, "package store\n\nconst Format = %d\n", format), 0o600))
		git("add", ".")
		git("commit", "-q", "-m", "a change")
	}
	git("init", "-q")
	commit(1)
	is("") // the first commit has none before it
	commit(2)
	is("")
	git("tag", "v0.9.0")
	is("")
	commit(3)
	git("tag", "experiment")
	is("v0.9.0")
	git("tag", "v0.10.0")
	is("v0.9.0") // it is this one
	commit(4)
	is("v0.10.0")

	sources, err := sourcesBefore(dir, t.TempDir())
	require.NoError(t, err)
	format, err := storeFormatOf(sources)
	require.NoError(t, err)
	require.Equal(t, 3, format)
}
