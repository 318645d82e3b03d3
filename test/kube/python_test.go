// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/stand"
)

// A controller that is written in Python watches, finalizes, writes Events and takes all away again.
func TestPythonsClientIsServed(t *testing.T) {
	const python, library = "/usr/bin/python3", "/usr/lib/python3/dist-packages/kubernetes"
	if _, err := os.Stat(library); err != nil && os.Getenv("CI") == "" {
		t.Skip("missing: python3-kubernetes; `make needs` installs it")
	}
	s := stand.New(t, 1)
	s.Up("hub")
	said, err := exec.CommandContext(t.Context(), python, "testdata/controller.py", "http://"+s.Hub.HTTP).CombinedOutput()
	require.NoError(t, err, "%s", said)
}
