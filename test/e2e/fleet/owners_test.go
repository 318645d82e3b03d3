// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spec changes a node's spec as a user.
func writeSpec(t *testing.T, name, spec string) (code int, message string) {
	t.Helper()
	code, answer, _ := callAPI(t, "", "PATCH", flightctlPath+"devices/"+name, `{"spec":`+spec+`}`)
	return code, answer.text("message")
}

// labelNode sets a label of a node as a user; none: it is removed.
func labelNode(t *testing.T, name, key, is string) {
	t.Helper()
	is = `"` + is + `"`
	if is == `""` {
		is = "null"
	}
	callOK(t, "", "PATCH", flightctlPath+"devices/"+name, fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, is))
}

// A Device that no fleet matches has no owner, its users write its spec, and no fleet ever touches it.
func Test11NoFleet(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p11=alone")
	makeFleet(t, "p11", "p11=fleet", motdConfig("of the fleet"))
	makeNode(t, "p11-member", "p11=fleet")
	code, why := writeSpec(t, n.name, motdConfig("by hand"))
	require.Equal(t, 200, code, why)
	n.untilFile(t, "etc/motd", "by hand")
	before := n.get(t).text("metadata.generation")
	setTemplate(t, "p11", motdConfig("of the fleet again"))
	untilIs(t, "nodes/p11-member", "metadata.owner", "Fleet/p11")
	untilIs(t, "fleets/p11", "status.rollout.templateVersion", "p11-0000002")
	require.Empty(t, n.get(t).text("metadata.owner"))
	require.Equal(t, before, n.get(t).text("metadata.generation"))
}

// A Device that a fleet matches and nobody owns is claimed.
func Test12Claimed(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p12=a")
	makeNode(t, "p12-away", "p12=a")
	makeFleet(t, "p12", "p12=a", motdConfig("claimed"))
	untilIs(t, "nodes/"+n.name, "metadata.owner", "Fleet/p12")
	untilIs(t, "nodes/p12-away", "metadata.owner", "Fleet/p12")
	n.untilFile(t, "etc/motd", "claimed")
	require.Equal(t, "Fleet/p12", callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "").text("metadata.owner"))
	makeNode(t, "p12-late", "p12=a")
	untilIs(t, "nodes/p12-late", "metadata.owner", "Fleet/p12")
}

// Of a Device that a fleet owns, users write the labels and other metadata, and neither spec nor owner: 409, which names the fleet.
func Test13OwnedIsTheFleets(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p13=a")
	makeFleet(t, "p13", "p13=a", motdConfig("owned"))
	n.untilFile(t, "etc/motd", "owned")
	code, why := writeSpec(t, n.name, motdConfig("by hand"))
	require.Equal(t, 409, code)
	require.Contains(t, why, "Fleet/p13")
	for _, owner := range []string{`""`, `"Fleet/other"`, `null`} {
		require.Contains(t, callRefused(t, 409, "", "PATCH", flightctlPath+"devices/"+n.name, `{"metadata":{"owner":`+owner+`}}`), "Fleet/p13")
	}
	out, err := kubectl(t, "", "patch", "node", n.name, "--type=merge", "-p", `{"spec":`+motdConfig("by hand")+`}`)
	require.Error(t, err)
	require.Contains(t, out, "Fleet/p13")
	labelNode(t, n.name, "room", "hall")
	callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"metadata":{"annotations":{"note":"x"}}}`)
	d := n.get(t)
	require.Equal(t, "hall x Fleet/p13", d.text("metadata.labels.room")+" "+d.text("metadata.annotations.note")+" "+d.text("metadata.owner"))
}

// A Device that its fleet matches no more is released: no owner, the spec as it was, which users may change.
func Test14Released(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p14=a")
	makeFleet(t, "p14", "p14=a", motdConfig("of the fleet"))
	n.untilFile(t, "etc/motd", "of the fleet")
	labelNode(t, n.name, "p14", "")
	untilIs(t, "nodes/"+n.name, "metadata.owner", "")
	n.untilFile(t, "etc/motd", "of the fleet")
	code, why := writeSpec(t, n.name, motdConfig("by hand"))
	require.Equal(t, 200, code, why)
	n.untilFile(t, "etc/motd", "by hand")
	labelNode(t, n.name, "p14", "a")
	n.untilFile(t, "etc/motd", "of the fleet")
	callOK(t, "", "DELETE", flightctlPath+"fleets/p14", "") // a fleet that is deleted releases its nodes, too
	untilIs(t, "nodes/"+n.name, "metadata.owner", "")
	waitUntil(t, func() error {
		if code, _, _ := callAPI(t, "", "GET", flightctlPath+"fleets/p14", ""); code != 404 {
			return fmt.Errorf("the fleet is there: %d", code)
		}
		return nil
	})
	n.untilFile(t, "etc/motd", "of the fleet")
}

// A Device that matches another fleet, after a change of its labels or of a selector, moves, and gets that fleet's latest version.
func Test15Moved(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p15=a")
	makeFleet(t, "p15-a", "p15=a", motdConfig("a"))
	makeFleet(t, "p15-b", "p15=b", motdConfig("b, an old one"))
	untilIs(t, "fleets/p15-b", "status.rollout.templateVersion", "p15-b-0000001")
	setTemplate(t, "p15-b", motdConfig("b"))
	untilIs(t, "fleets/p15-b", "status.rollout.templateVersion", "p15-b-0000002")
	n.untilFile(t, "etc/motd", "a")
	labelNode(t, n.name, "p15", "b")
	n.untilFile(t, "etc/motd", "b")
	require.Equal(t, "Fleet/p15-b", n.get(t).text("metadata.owner"))
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", "p15-b-0000002")

	patchObject(t, "fleets/p15-b", `{"spec":{"selector":{"matchLabels":{"p15":"none"}}}}`)
	patchObject(t, "fleets/p15-a", `{"spec":{"selector":{"matchLabels":{"p15":"b"}}}}`)
	n.untilFile(t, "etc/motd", "a")
	require.Equal(t, "Fleet/p15-a", n.get(t).text("metadata.owner"))
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", "p15-a-0000001")
}

// The label fleet-controller=paused, in both spellings, ends the management of a Device: no owner, no new versions, a spec that users
// write (16). Without the label the fleet claims it again, with the latest version (17). One that is paused and matches no more
// is an individual Device (18).
func Test16To18Paused(t *testing.T) {
	t.Parallel()
	for i, key := range []string{"fleet-controller", "flightctl.io/fleet-controller"} {
		t.Run(strings.ReplaceAll(key, "/", "_"), func(t *testing.T) {
			t.Parallel()
			fleet := fmt.Sprintf("p16-%d", i)
			n := newNodeWithAgent(t, fleet+"=a")
			other := newNodeWithAgent(t, fleet+"=a")
			makeFleet(t, fleet, fleet+"=a", motdConfig("one"))
			n.untilFile(t, "etc/motd", "one")
			labelNode(t, n.name, key, "paused")
			untilIs(t, "nodes/"+n.name, "metadata.owner", "")
			code, why := writeSpec(t, n.name, motdConfig("by hand"))
			require.Equal(t, 200, code, why)
			n.untilFile(t, "etc/motd", "by hand")
			setTemplate(t, fleet, motdConfig("two"))
			other.untilFile(t, "etc/motd", "two")
			setTemplate(t, fleet, motdConfig("three"))
			other.untilFile(t, "etc/motd", "three")
			n.untilFile(t, "etc/motd", "by hand")
			require.Equal(t, "3", n.get(t).text("metadata.generation"), "it was made, had the fleet's first version, and was changed by hand")

			labelNode(t, n.name, key, "")
			n.untilFile(t, "etc/motd", "three")
			require.Equal(t, "Fleet/"+fleet, n.get(t).text("metadata.owner"))
			untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", fleet+"-0000003")

			labelNode(t, n.name, key, "paused")
			untilIs(t, "nodes/"+n.name, "metadata.owner", "")
			labelNode(t, n.name, fleet, "")
			labelNode(t, n.name, key, "")
			setTemplate(t, fleet, motdConfig("four"))
			other.untilFile(t, "etc/motd", "four")
			require.Empty(t, n.get(t).text("metadata.owner"))
			n.untilFile(t, "etc/motd", "three")
		})
	}
}

// A Device that something else owns is never claimed.
func Test19ForeignOwner(t *testing.T) {
	t.Parallel()
	makeNode(t, "p19", "p19=a")
	callOK(t, controllerUser, "PATCH", flightctlPath+"devices/p19", `{"metadata":{"owner":"`+controllerUser+`/7"}}`)
	makeNode(t, "p19-free", "p19=a")
	makeFleet(t, "p19", "p19=a", motdConfig("of the fleet"))
	requireStays(t, func() error { return wantEqual(controllerUser+"/7", getObject(t, "nodes/p19").text("metadata.owner")) }, func() {
		untilIs(t, "nodes/p19-free", "metadata.owner", "Fleet/p19")
		labelNode(t, "p19", "room", "hall")
		labelNode(t, "p19-free", "room", "hall")
		makeNode(t, "p19-later", "p19=a")
		untilIs(t, "nodes/p19-later", "metadata.owner", "Fleet/p19")
	})
	require.False(t, getObject(t, "nodes/p19").has("spec.config"))
	callOK(t, controllerUser, "PATCH", flightctlPath+"devices/p19", `{"metadata":{"owner":null}}`)
	untilIs(t, "nodes/p19", "metadata.owner", "Fleet/p19")
}

// When several fleets match, the present owner stays; without one the oldest claims. All of them show OverlappingSelectors with names, and
// the Device shows MultipleOwners.
func Test20SeveralFleets(t *testing.T) {
	t.Parallel()
	makeFleet(t, "p20-1", "p20=a", motdConfig("old"))
	makeNode(t, "p20-first", "p20=b")
	makeFleet(t, "p20-2", "p20=b", motdConfig("new"))
	untilIs(t, "nodes/p20-first", "metadata.owner", "Fleet/p20-2")
	patchObject(t, "fleets/p20-1", `{"spec":{"selector":{"matchLabels":{"p20":"b"}}}}`)
	for fleet, other := range map[string]string{"p20-1": "p20-2", "p20-2": "p20-1"} {
		untilCondition(t, "fleets/"+fleet, "OverlappingSelectors", "True", other)
	}
	untilCondition(t, "nodes/p20-first", "MultipleOwners", "True", "p20-1", "p20-2")
	require.Equal(t, "Fleet/p20-2", getObject(t, "nodes/p20-first").text("metadata.owner"), "the present owner stays")
	makeNode(t, "p20-second", "p20=b")
	untilIs(t, "nodes/p20-second", "metadata.owner", "Fleet/p20-1")
	out, err := kubectl(t, "", "get", "fleets", "p20-1", "p20-2", "--no-headers")
	require.NoError(t, err, out)
	require.Equal(t, 2, strings.Count(out, "True"), out)

	patchObject(t, "fleets/p20-2", `{"spec":{"selector":{"matchLabels":{"p20":"none"}}}}`)
	untilIs(t, "nodes/p20-first", "metadata.owner", "Fleet/p20-1")
	for _, fleet := range []string{"p20-1", "p20-2"} {
		untilCondition(t, "fleets/"+fleet, "OverlappingSelectors", "False")
	}
	untilCondition(t, "nodes/p20-first", "MultipleOwners", "False")
}
