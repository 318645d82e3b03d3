// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/faults"
)

// A node that is offline through five changes of its fleet's template gets only the last.
func TestAwayThroughFiveChanges(t *testing.T) {
	t.Parallel()
	n, other := newNodeWithAgent(t, "away=a"), newNodeWithAgent(t, "away=a")
	makeFleet(t, "away", "away=a", motdConfig("0"))
	n.untilFile(t, "etc/motd", "0")
	before := n.settled(t)
	generation := n.get(t).text("metadata.generation")
	n.disconnect(t)
	for i := 1; i <= 5; i++ {
		setTemplate(t, "away", motdConfig(fmt.Sprint(i)))
		other.untilFile(t, "etc/motd", fmt.Sprint(i))
	}
	untilIs(t, "fleets/away", "status.rollout.message", "1 is offline")
	require.Equal(t, generation, n.get(t).text("metadata.generation"), "while it is away nothing is written")
	n.connect(t)
	n.untilFile(t, "etc/motd", "5")
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", getObject(t, "fleets/away").text("metadata.annotations.fleet-controller/templateVersion"))
	require.Equal(t, nextRenderedVersion(t, before), n.settled(t), "one version was rendered for it")
	require.Equal(t, nextRenderedVersion(t, generation), n.get(t).text("metadata.generation"))
}

// A node that is moved from one fleet to another while it is offline gets the other's template, and nothing in between; so does one that is
// moved there and back.
func TestMovedWhileAway(t *testing.T) {
	t.Parallel()
	n, back := newNodeWithAgent(t, "moved=a"), newNodeWithAgent(t, "moved=a")
	makeFleet(t, "moved-a", "moved=a", motdConfig("a"))
	makeFleet(t, "moved-b", "moved=b", motdConfig("b"))
	var versions []string
	for _, m := range []*testNode{n, back} {
		m.untilFile(t, "etc/motd", "a")
		versions = append(versions, m.settled(t))
		m.disconnect(t)
		labelNode(t, m.name, "moved", "b")
		untilIs(t, "nodes/"+m.name, "metadata.owner", "Fleet/moved-b")
	}
	setTemplate(t, "moved-a", motdConfig("a again"))
	setTemplate(t, "moved-b", motdConfig("b again"))
	untilIs(t, "fleets/moved-b", "status.rollout.templateVersion", "moved-b-0000002")
	labelNode(t, back.name, "moved", "a")
	untilIs(t, "nodes/"+back.name, "metadata.owner", "Fleet/moved-a")
	n.connect(t)
	back.connect(t)
	n.untilFile(t, "etc/motd", "b again")
	back.untilFile(t, "etc/motd", "a again")
	for i, m := range []*testNode{n, back} {
		require.Equal(t, nextRenderedVersion(t, versions[i]), m.settled(t), "one version was rendered for it")
	}
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", "moved-b-0000002")
	require.Equal(t, "Fleet/moved-b", n.get(t).text("metadata.owner"))
}

// disconnect takes the network of a node away, whose programs run on.
func (n *testNode) disconnect(t *testing.T) {
	t.Helper()
	sharedHub.Node(n.name).Net.Cut(faults.Reset)
	untilIs(t, "nodes/"+n.name, "status.state", "offline")
}

func (n *testNode) connect(t *testing.T) {
	t.Helper()
	sharedHub.Node(n.name).Net.Heal()
	untilIs(t, "nodes/"+n.name, "status.state", "online")
}

// nextRenderedVersion is the number after one.
func nextRenderedVersion(t *testing.T, number string) string {
	t.Helper()
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	return strconv.Itoa(n + 1)
}
