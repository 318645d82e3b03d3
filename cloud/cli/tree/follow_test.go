// SPDX-License-Identifier: Apache-2.0

package tree_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/tree"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestALiveTreeSaysThatItIsNotConnected(t *testing.T) {
	server := clitest.StartHangingUpListener(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes, err := tree.Source{Target: access.Target{MQTT: server}}.Follow(ctx, "n1")
	require.NoError(t, err)
	c := <-changes
	require.Contains(t, c.String(), "not connected to "+server)
	v := tree.NewView("n1")
	v.Apply(c)
	require.Contains(t, strings.Join(v.Footer(), "\n"), "not connected to "+server)
	v.Apply(tree.Change{Note: "cloudhub runs again"})
	require.Contains(t, strings.Join(v.Notes, "\n"), "cloudhub runs again")
	v.Apply(tree.Change{Up: true})
	require.NotContains(t, strings.Join(v.Footer(), "\n"), "not connected")
}
