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
	n, other := whole(t, "away=a"), whole(t, "away=a")
	makeFleet(t, "away", "away=a", motd("0"))
	n.untilFile(t, "etc/motd", "0")
	before := n.settled(t)
	generation := n.get(t).text("metadata.generation")
	n.disconnect(t)
	for i := 1; i <= 5; i++ {
		template(t, "away", motd(fmt.Sprint(i)))
		other.untilFile(t, "etc/motd", fmt.Sprint(i))
	}
	untilIs(t, "fleets/away", "status.rollout.message", "1 are offline")
	require.Equal(t, generation, n.get(t).text("metadata.generation"), "while it is away nothing is written")
	n.connect(t)
	n.untilFile(t, "etc/motd", "5")
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", get(t, "fleets/away").text("metadata.annotations.fleet-controller/templateVersion"))
	require.Equal(t, next(t, before), n.settled(t), "one version was rendered for it")
	require.Equal(t, next(t, generation), n.get(t).text("metadata.generation"))
}

// A node that is moved from one fleet to another while it is offline gets the other's template, and nothing in between; so does one that is
// moved there and back.
func TestMovedWhileAway(t *testing.T) {
	t.Parallel()
	n, back := whole(t, "moved=a"), whole(t, "moved=a")
	makeFleet(t, "moved-a", "moved=a", motd("a"))
	makeFleet(t, "moved-b", "moved=b", motd("b"))
	var versions []string
	for _, m := range []*node{n, back} {
		m.untilFile(t, "etc/motd", "a")
		versions = append(versions, m.settled(t))
		m.disconnect(t)
		label(t, m.name, "moved", "b")
		untilIs(t, "nodes/"+m.name, "metadata.owner", "Fleet/moved-b")
	}
	template(t, "moved-a", motd("a again"))
	template(t, "moved-b", motd("b again"))
	untilIs(t, "fleets/moved-b", "status.rollout.templateVersion", "moved-b-0000002")
	label(t, back.name, "moved", "a")
	untilIs(t, "nodes/"+back.name, "metadata.owner", "Fleet/moved-a")
	n.connect(t)
	back.connect(t)
	n.untilFile(t, "etc/motd", "b again")
	back.untilFile(t, "etc/motd", "a again")
	for i, m := range []*node{n, back} {
		require.Equal(t, next(t, versions[i]), m.settled(t), "one version was rendered for it")
	}
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", "moved-b-0000002")
	require.Equal(t, "Fleet/moved-b", n.get(t).text("metadata.owner"))
}

// disconnect takes the network of a node away, whose programs run on.
func (n *node) disconnect(t *testing.T) {
	t.Helper()
	hub.Node(n.name).Net.Cut(faults.Reset)
	untilIs(t, "nodes/"+n.name, "status.state", "offline")
}

func (n *node) connect(t *testing.T) {
	t.Helper()
	hub.Node(n.name).Net.Heal()
	untilIs(t, "nodes/"+n.name, "status.state", "online")
}

// next is the number after one.
func next(t *testing.T, number string) string {
	t.Helper()
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	return strconv.Itoa(n + 1)
}
