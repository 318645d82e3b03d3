// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/stand"
)

// A client that takes all the file descriptors that a core may have doesn't keep it from its hub: the
// link comes back, and doctor, who is answered, says that they are short.
func TestALackOfFileDescriptorsIsBorne(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Wrap("core", "sh", "-c", `ulimit -n 96 && exec "$0" "$@"`)
	s.Up("hub", "core")
	s.InStep()
	refused := 0
	for i := 0; refused < 20; i++ {
		c, err := net.Dial("tcp", s.Core())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(stand.WaitTimeout)))
		_, err = fmt.Fprintf(c, "\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05%05d", i)
		if err == nil {
			err = readAnswer(c, 0x20)
		}
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "neither taken nor refused")
		if err != nil {
			refused++
		}
		require.Less(t, i, 200, "nothing is refused")
	}
	for range 3 {
		s.Node("n1").Net.Cut(faults.Reset)
		s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_link_up", 0) })
		s.Node("n1").Net.Heal()
		s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_link_up", 1) })
	}
	s.InStep()
	said, err := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "edgebus"), "doctor", "n1",
		"--hub", "http://"+s.Hub.HTTP, "--core", "http://"+s.Node("n1").HTTP).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "✗ edgecore refuses new connections: nearly all of the 96 file descriptors")
}
