// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestNoBrokerIsToldFromAnEmptyTree(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and never answered
	require.NoError(t, err)
	defer silent.Close()
	for _, server := range []string{clitest.StartHangingUpListener(t), "mqtt://" + silent.Addr().String(), "mqtt://127.0.0.1:1"} {
		var out, errs bytes.Buffer
		require.Equal(t, exitcode.Unreachable, cli.Run([]string{"tree", "n1", "--once", "--server", server}, &out, &errs))
		require.Contains(t, errs.String(), "no connection to "+server)
		require.NotContains(t, errs.String(), "nothing is known")
	}
}
