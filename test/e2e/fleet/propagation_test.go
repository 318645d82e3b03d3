// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The four examples of propagation of the source document. The numbers in comments are the steps that it numbers.

func Test37FleetTemplateChanges(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p37a=a")
	makeFleet(t, "p37a", "p37a=a", motdConfig("one"))
	n.untilFile(t, "etc/motd", "one")
	before, version := n.settled(t), nextVersion(t, "p37a")
	setTemplate(t, "p37a", motdConfig("two")) // 1
	n.followsFleet(t, "p37a", version, before)
	n.untilFile(t, "etc/motd", "two")
}

func Test37ExternalFleetReferenceChanges(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p37b=a")
	r := makeRepository(t, "p37b", "etc/motd", "one\n")
	makeFleet(t, "p37b", "p37b=a", `{"config":[`+fromGit("p37b", "main", "/")+`]}`)
	n.untilFile(t, "etc/motd", "one\n")
	before, version := n.settled(t), nextVersion(t, "p37b")
	commit := r.commit(t, "etc/motd", "two\n") // 1
	n.followsFleet(t, "p37b", version, before)
	n.untilFile(t, "etc/motd", "two\n")
	require.Equal(t, commit, getObject(t, "templateversions/"+version).text("spec.references.0.resolved"))
	require.Equal(t, commit, n.get(t).text("spec.config.0.gitRef.targetRevision"))
	require.Equal(t, "1", getObject(t, "fleets/p37b").text("metadata.generation"), "nobody has changed the fleet")
}

func Test37ExternalDeviceReferenceChanges(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t)
	makeMap(t, "p37c", "a", "one")
	patchObject(t, "nodes/"+n.name, `{"spec":{"config":[`+fromMap("p37c", "/etc/p37c")+`]}}`)
	n.untilFile(t, "etc/p37c/a", "one")
	before, spec := n.settled(t), n.get(t).text("spec")
	callOK(t, "", "PATCH", flightctlPath+"namespaces/default/configmaps/p37c", `{"data":{"a":"two"}}`) // 1
	n.followsSpec(t, before)
	n.untilFile(t, "etc/p37c/a", "two")
	require.Equal(t, spec, n.get(t).text("spec"))
}

func Test37DeviceSpecChanges(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t)
	callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"spec":`+motdConfig("one")+`}`)
	n.untilFile(t, "etc/motd", "one")
	before := n.settled(t)
	callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"spec":`+motdConfig("two")+`}`) // 1
	n.followsSpec(t, before)
	n.untilFile(t, "etc/motd", "two")
}

// settled waits until the node has applied what it was sent last, and returns that version.
func (n *testNode) settled(t *testing.T) (version string) {
	t.Helper()
	waitUntil(t, func() error {
		s := n.get(t)
		version = s.text("status.renderedVersion")
		if i := s.condition("SpecRendered"); i == "" {
			return fmt.Errorf("nothing is rendered")
		}
		return wantEqual(s.text("status.specVersion"), version)
	})
	return version
}

// nextVersion is the name of the version that a fleet is going to have.
func nextVersion(t *testing.T, fleet string) string {
	t.Helper()
	now := getObject(t, "fleets/"+fleet).text("metadata.annotations.fleet-controller/templateVersion")
	n, err := strconv.Atoi(strings.TrimPrefix(now, fleet+"-"))
	require.NoError(t, err)
	return fmt.Sprintf("%s-%07d", fleet, n+1)
}

// followsFleet are the steps after the change of a fleet's template, or of what it refers to.
func (n *testNode) followsFleet(t *testing.T, fleet, version, before string) {
	t.Helper()
	waitUntil(t, func() error { // 2: there is a TemplateVersion
		if code, _, _ := callAPI(t, "", "GET", flightctlPath+"fleets/"+fleet+"/templateversions/"+version, ""); code != 200 {
			return fmt.Errorf("no %s: %d", version, code)
		}
		return nil
	})
	waitUntil(t, func() error { // 3: the fleet's annotation names it
		return wantEqual(version, callOK(t, "", "GET", flightctlPath+"fleets/"+fleet, "").text("metadata.annotations.fleet-controller/templateVersion"))
	})
	untilIs(t, "fleets/"+fleet, "status.rollout.templateVersion", version) // 4: it is rolled out
	waitUntil(t, func() error {                                            // 5: the device's annotation names it
		return wantEqual(version, callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "").text("metadata.annotations.fleet-controller/templateVersion"))
	})
	n.followsSpec(t, before)
	untilIs(t, "fleets/"+fleet, "status.rollout.updated", "1")
}

// followsSpec are the steps after a device's spec, or what it refers to, has changed.
func (n *testNode) followsSpec(t *testing.T, before string) {
	t.Helper()
	path := flightctlPath + "devices/" + n.name
	waitUntil(t, func() error { // the device controller renders it anew, which its annotation says
		if v := callOK(t, "", "GET", path, "").text("metadata.annotations.renderedVersion"); v == before {
			return fmt.Errorf("it is %s still", v)
		}
		return nil
	})
	after := callOK(t, "", "GET", path, "").text("metadata.annotations.renderedVersion")
	rendered := callOK(t, "", "GET", path+"/rendered?knownRenderedVersion="+before, "") // what the device finds there
	require.Equal(t, after, rendered.text("metadata.annotations.renderedVersion"))
	untilIs(t, "nodes/"+n.name, "status.renderedVersion", after) // what the device reports
	code, _, _ := callAPI(t, "", "GET", path+"/rendered?knownRenderedVersion="+after, "")
	require.Equal(t, 204, code)
}
