// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// What is canonical by now is in no annotation: only what nothing here acts on is kept there.
func TestWhatFlightctlSaysIsCanonical(t *testing.T) {
	for name, kept := range map[string]string{
		"flightctl-v1beta1-fleet.yaml": "", "flightctl-v1beta1-repository-http.yaml": "", "flightctl-v1beta1-repository-ssh.yaml": "",
		"flightctl-v1beta1-repository-oci.yaml": "/spec/accessMode", "flightctl-v1beta1-sync.yaml": "/spec/type",
	} {
		k, form := readSample(t, name)
		canonical := readForm(t, k, form, nil)
		notes, _ := canonical["metadata"].(jsonObject)["annotations"].(jsonObject)
		text, _ := notes[k.annotation()].(string)
		if kept == "" {
			require.Empty(t, text, name)
		} else {
			require.Contains(t, text, kept)
			require.Equal(t, 1, strings.Count(text, `"at"`), text)
		}
	}
	_, form := readSample(t, "flightctl-v1beta1-fleet.yaml")
	var fleet resource.Fleet
	require.NoError(t, recodeJSON(readForm(t, kindOf(t, form), form, nil), &fleet))
	require.NoError(t, fleet.Validate())
	require.Equal(t, "1", fleet.Spec.RolloutPolicy.DeviceSelection.Sequence[0].Limit)
	require.Equal(t, resource.ConfigHTTP, fleet.Spec.Template.Spec.Config[2].ConfigType)
	require.Equal(t, "registry.example/apps/meter:2", fleet.Spec.Template.Spec.Applications[0].Image)

	_, form = readSample(t, "flightctl-v1beta1-repository-oci.yaml")
	var repository resource.Repository
	require.NoError(t, recodeJSON(readForm(t, kindOf(t, form), form, nil), &repository))
	require.NoError(t, repository.Validate())
	require.Equal(t, "oci://registry.example", repository.Spec.URL)
	require.Equal(t, "correct horse", string(repository.Spec.Credentials["password"]))
	_, form = readSample(t, "flightctl-v1beta1-repository-http.yaml")
	require.NoError(t, recodeJSON(readForm(t, kindOf(t, form), form, nil), &repository))
	require.True(t, repository.Spec.InsecureSkipVerify)
	require.Equal(t, "-----BEGIN", string(repository.Spec.Credentials["tls.crt"]))
}

func shownAs(t *testing.T, version string, canonical any) jsonObject {
	t.Helper()
	raw, err := json.Marshal(canonical)
	require.NoError(t, err)
	for _, k := range AllKinds() {
		if k.APIVersion() == version && k.Canonical == canonicalKind(canonical) {
			shown, err := k.Show(raw)
			require.NoError(t, err)
			form, err := parseObject(shown)
			require.NoError(t, err)
			return form
		}
	}
	t.Fatal("no dialect")
	return nil
}

func canonicalKind(v any) string {
	switch v.(type) {
	case resource.Fleet:
		return resource.KindFleet
	case resource.TemplateVersion:
		return resource.KindTemplateVersion
	}
	return resource.KindNode
}

func valueAt(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		fields, _ := v.(jsonObject)
		v = fields[name]
	}
	return v
}

func TestSummariesOfADevice(t *testing.T) {
	updating := func(reason string) []resource.Condition {
		return []resource.Condition{{Type: "Updating", Status: "True", Reason: reason}}
	}
	for name, c := range map[string]struct {
		status           resource.NodeStatus
		summary, updated string
	}{
		"online":      {resource.NodeStatus{State: resource.Online, RenderedVersion: "1", SpecVersion: "1"}, "Online", "UpToDate"},
		"offline":     {resource.NodeStatus{State: resource.Offline, RenderedVersion: "1", SpecVersion: "2"}, "Unknown", "OutOfDate"},
		"degraded":    {resource.NodeStatus{State: resource.Online, Resources: &resource.ResourceStatus{CPU: "Warning", Disk: "Healthy"}}, "Degraded", "Unknown"},
		"error":       {resource.NodeStatus{State: resource.Online, Resources: &resource.ResourceStatus{CPU: "Warning", Disk: "Critical", Memory: "Warning"}}, "Error", "Unknown"},
		"rebooting":   {resource.NodeStatus{State: resource.Online, RenderedVersion: "1", SpecVersion: "2", Conditions: updating("Rebooting")}, "Rebooting", "Updating"},
		"downloading": {resource.NodeStatus{State: resource.Online, RenderedVersion: "1", SpecVersion: "2", Conditions: updating("Downloading")}, "Online", "Updating"},
	} {
		form := shownAs(t, "flightctl.io/v1beta1", resource.Node{Status: c.status})
		require.Equal(t, c.summary, valueAt(form, "status.summary.status"), name)
		require.Equal(t, c.updated, valueAt(form, "status.updated.status"), name)
	}
}

// Whether a Device is part of the bus, and was asked to leave it, follows from the hub's condition, whatever a manifest says.
func TestLifecycleOfADevice(t *testing.T) {
	revoked := func(status, reason string) []resource.Condition {
		return []resource.Condition{{Type: resource.ConditionRevoked, Status: status, Reason: reason}}
	}
	for name, c := range map[string]struct {
		status          resource.NodeStatus
		lifecycle       any
		decommissioning any
	}{
		"never seen":      {resource.NodeStatus{}, nil, nil},
		"online":          {resource.NodeStatus{State: resource.Online}, "Enrolled", nil},
		"offline":         {resource.NodeStatus{State: resource.Offline}, "Enrolled", nil},
		"revoked":         {resource.NodeStatus{State: resource.Offline, Conditions: revoked("True", resource.ReasonRevoked)}, "Unknown", nil},
		"decommissioning": {resource.NodeStatus{State: resource.Offline, Conditions: revoked("True", resource.ReasonDecommissioning)}, "Decommissioning", "Unenroll"},
		"decommissioned":  {resource.NodeStatus{Conditions: revoked("True", resource.ReasonDecommissioned)}, "Decommissioned", "Unenroll"},
		"joined again":    {resource.NodeStatus{State: resource.Online, Conditions: revoked("False", resource.ReasonJoined)}, "Enrolled", nil},
	} {
		form := shownAs(t, "flightctl.io/v1beta1", resource.Node{Status: c.status})
		require.Equal(t, c.lifecycle, valueAt(form, "status.lifecycle.status"), name)
		require.Equal(t, c.decommissioning, valueAt(form, "spec.decommissioning.target"), name)
	}
}

// What flightctl requires of a Device's status is there, also of a node whose agent has reported nothing, or not all of it.
func TestAStatusHasWhatFlightctlRequires(t *testing.T) {
	for _, version := range []struct {
		status       resource.NodeStatus
		architecture string
	}{
		{resource.NodeStatus{State: resource.Offline}, ""},
		{resource.NodeStatus{State: resource.Online, SystemInfo: &resource.SystemInfo{Architecture: "arm64"}}, "arm64"},
	} {
		form := shownAs(t, "flightctl.io/v1beta1", resource.Node{Status: version.status})
		require.Equal(t, version.architecture, valueAt(form, "status.systemInfo.architecture"))
		require.Equal(t, []any{}, valueAt(form, "status.applications"))
		require.Equal(t, []any{}, valueAt(form, "status.conditions"))
		for path, want := range map[string]string{
			"systemInfo.bootID": "", "systemInfo.operatingSystem": "", "systemInfo.agentVersion": "", "config.renderedVersion": "", "os.image": "", "os.imageDigest": "",
			"resources.cpu": "Unknown", "resources.memory": "Unknown", "resources.disk": "Unknown", "integrity.status": "Unknown",
		} {
			require.Equal(t, want, valueAt(form, "status."+path), path)
		}
	}
}

// What an agent says of a unit of systemd is shown as it said it.
func TestUnitsAreShownAsTheAgentReportsThem(t *testing.T) {
	form, err := parseObject([]byte(`{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"a"},"status":{"systemd":[
		{"unit":"sshd.service","description":"OpenSSH server daemon","enableState":"enabled","loadState":"loaded","activeState":"active","subState":"running"},
		{"unit":"chronyd.service","description":"NTP","enableState":"enabled","loadState":"loaded","activeState":"active","subState":"running"}]}}`))
	require.NoError(t, err)
	k := kindOf(t, form)
	stored, err := json.Marshal(resource.Node{TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindNode}, Metadata: resource.Meta{Name: "a"}})
	require.NoError(t, err)
	raw, err := json.Marshal(form)
	require.NoError(t, err)
	canonical, err := k.Read(raw, stored, true)
	require.NoError(t, err)
	shown, err := k.Show(canonical)
	require.NoError(t, err)
	got, err := parseObject(shown)
	require.NoError(t, err)
	require.Equal(t, valueAt(form, "status.systemd"), valueAt(got, "status.systemd"))
}

// How a host gets its system is kept of a request to join, and is no field that the form doesn't have.
func TestARequestToJoinSaysHowTheHostGetsItsSystem(t *testing.T) {
	raw := []byte(`{"apiVersion":"flightctl.io/v1beta1","kind":"EnrollmentRequest","metadata":{"name":"a"},"spec":{"csr":"x","osMode":"package"}}`)
	form, err := parseObject(raw)
	require.NoError(t, err)
	require.Empty(t, kindOf(t, form).Unknown(raw))
}

func TestFleetAndTemplateVersionOfToday(t *testing.T) {
	spec := resource.NodeSpec{
		OS:         &resource.NodeOS{Image: "registry.example/os:1"},
		Config:     []resource.ConfigItem{{Name: "git", ConfigType: resource.ConfigGit, GitRef: &resource.GitRef{Repository: "r", TargetRevision: "main", Path: "/"}}},
		Monitoring: &resource.Monitoring{Systemd: &resource.Patterns{MatchPatterns: []string{"x.service"}}},
	}
	fleet := resource.Fleet{Spec: resource.FleetSpec{Template: resource.NodeTemplate{Spec: spec}}}
	fleet.Status.Rollout = &resource.RolloutStatus{TemplateVersion: "f-0000001", Batch: 2, Batches: 3, Nodes: 10, Updated: 4, Updating: 3, FailedNodes: 1, BatchStarted: "2026-11-23T06:00:00Z"}
	fleet.Status.Conditions = []resource.Condition{{Type: resource.TemplateResolved, Status: "False", Reason: "NotFound", Message: "no such tag"}}
	fleet.Status.Summary = &resource.FleetSummary{}
	for i := range 10 {
		s := resource.NodeStatus{State: resource.Online, SpecVersion: "2", RenderedVersion: "2", Applications: []resource.ApplicationStatus{{Name: "web", Status: "Running"}}}
		if i < 3 {
			s.State, s.RenderedVersion, s.Applications[0].Status = resource.Offline, "1", "Error"
		}
		fleet.Status.Summary.Add(s.Summaries())
	}
	form := shownAs(t, "flightctl.io/v1beta1", fleet)
	require.Equal(t, json.Number("10"), valueAt(form, "status.devicesSummary.total"))
	require.Equal(t, jsonObject{"UpToDate": json.Number("7"), "OutOfDate": json.Number("3")}, valueAt(form, "status.devicesSummary.updateStatus"))
	require.Equal(t, jsonObject{"Online": json.Number("7"), "Unknown": json.Number("3")}, valueAt(form, "status.devicesSummary.summaryStatus"))
	require.Equal(t, jsonObject{"Healthy": json.Number("7"), "Error": json.Number("3")}, valueAt(form, "status.devicesSummary.applicationStatus"))
	conditions := valueAt(form, "status.conditions").([]any)
	require.Len(t, conditions, 3)
	require.Equal(t, []any{"Valid", "False", "NotFound", "no such tag"}, []any{valueAt(conditions[1], "type"), valueAt(conditions[1], "status"), valueAt(conditions[1], "reason"), valueAt(conditions[1], "message")})
	require.Equal(t, []any{"RolloutInProgress", "True", "Active", "2026-11-23T06:00:00Z"},
		[]any{valueAt(conditions[2], "type"), valueAt(conditions[2], "status"), valueAt(conditions[2], "reason"), valueAt(conditions[2], "lastTransitionTime")})
	require.Equal(t, json.Number("2"), valueAt(form, "status.rollout.currentBatch"))
	item := valueAt(form, "spec.template.spec.config").([]any)[0].(jsonObject)
	require.NotContains(t, item, "configType")
	waiting := *fleet.Status.Rollout
	waiting.Updating, waiting.Reason = 0, "OutsideTargetsWindow"
	outside := fleet
	outside.Status.Rollout = &waiting
	conditions = valueAt(shownAs(t, "flightctl.io/v1beta1", outside), "status.conditions").([]any)
	require.Equal(t, []any{"False", "Waiting"}, []any{valueAt(conditions[2], "status"), valueAt(conditions[2], "reason")})
	require.Equal(t, []any{"x.service"}, valueAt(form, "spec.template.spec.systemd.matchPatterns"))

	version := resource.TemplateVersion{Spec: resource.TemplateVersionSpec{Fleet: "f", Template: fleet.Spec.Template, References: []resource.Reference{
		{Type: resource.RefGit, Source: "r", Path: "/", Floating: "main", Resolved: strings.Repeat("a", 40)},
		{Type: resource.RefImage, Source: "registry.example/os", Floating: "1", Resolved: "sha256:00"},
	}}}
	form = shownAs(t, "flightctl.io/v1beta1", version)
	require.Equal(t, jsonObject{"fleet": "f"}, form["spec"])
	require.Equal(t, "registry.example/os@sha256:00", valueAt(form, "status.os.image"))
	require.Equal(t, strings.Repeat("a", 40), valueAt(valueAt(form, "status.config").([]any)[0], "gitRef.targetRevision"))
	require.Nil(t, valueAt(form, "metadata.annotations"))
}

// A limit of a batch is a number or a text, and nothing else.
func TestLimitOfABatch(t *testing.T) {
	_, form := readSample(t, "flightctl-v1beta1-fleet.yaml")
	k := kindOf(t, form)
	for _, bad := range []any{jsonObject{"a": "b"}, []any{"1"}} {
		valueAt(form, "spec.rolloutPolicy.deviceSelection").(jsonObject)["sequence"].([]any)[0].(jsonObject)["limit"] = bad
		raw, err := json.Marshal(form)
		require.NoError(t, err)
		_, err = k.Read(raw, nil, false)
		require.ErrorContains(t, err, "spec.rolloutPolicy.deviceSelection.sequence[0].limit")
	}
}

// Credentials are those of all fields that a Repository may have them in.
func TestCredentialsOfSeveralFields(t *testing.T) {
	form, err := parseObject([]byte(`{"apiVersion":"flightctl.io/v1beta1","kind":"Repository","metadata":{"name":"a"},
		"spec":{"url":"https://host/path","credentials":{"ca.crt":"Y2E=","username":"dQ=="},"httpConfig":{"token":"t"}}}`))
	require.NoError(t, err)
	k := kindOf(t, form)
	canonical := readForm(t, k, form, nil)
	var repository resource.Repository
	require.NoError(t, recodeJSON(canonical, &repository))
	require.Equal(t, map[string][]byte{"ca.crt": []byte("ca"), "username": []byte("u"), "token": []byte("t")}, repository.Spec.Credentials)
	require.Equal(t, canonical, readForm(t, k, showForm(t, k, canonical), canonical))
}
