// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

func callAPI(t *testing.T, method, url string) ([]byte, error) {
	t.Helper()
	return harness.Call(t.Context(), method, url, nil)
}

const (
	notAuthorised = 0x87
	topicInvalid  = 0x90
	badPayload    = 0x99
)

func TestOnlyItsOwnerWritesAKey(t *testing.T) {
	t.Parallel()
	stand.RequirePrograms(t, "mosquitto_pub")
	s := newHallStand(t)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	require.NoError(t, s.Publish(core, deviceTree+"hall/reported/temperature", "20"))
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired/setpoint", "21"))
	s.InStep()
	cloud, local := s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", nil), s.Watch(s.Core(), "v1/nodes/n1/#", nil)
	s.Whole(cloud, local)
	require.Equal(t, "20", watchedPayload(cloud, "hall/reported/temperature"))
	require.Equal(t, "21", watchedPayload(local, "hall/desired/setpoint"))
	before := []string{watchedTopics(cloud), watchedTopics(local)}

	for _, tt := range []struct {
		at           *client.Client
		topic, value string
		code         byte
		says         []string
	}{
		{hub, deviceTree + "hall/reported/temperature", "99", notAuthorised, []string{"reported/temperature", "edge"}},
		{hub, deviceTree + "hall/override/setpoint", "9", notAuthorised, []string{"override/setpoint", "edge"}},
		{hub, deviceTree + "hall/state", "online", notAuthorised, []string{"state"}},
		{hub, deviceTree + "hall", "{}", notAuthorised, []string{"hall", "cloud"}},
		{hub, "v1/nodes/n1/state", "offline", notAuthorised, []string{"state"}},
		{hub, "v1/nodes/n1/status", "{}", notAuthorised, []string{"status"}},
		{hub, "v1/nodes/n1/membership", "{}", notAuthorised, []string{"membership"}},
		{hub, "v1/nodes/n1/sync/up", "x", notAuthorised, []string{"sync/up"}},
		{hub, "v1/nodes/n1/sync/down", "x", notAuthorised, []string{"sync/down"}},
		{hub, deviceTree + "hall/desired/temperature", "20", notAuthorised, []string{"temperature", "read-only"}},
		{hub, deviceTree + "hall/desired/setpoint", "warm", badPayload, []string{"setpoint", "float"}},
		{hub, deviceTree + "hall/desired/setpoint", "36", badPayload, []string{"setpoint", "35"}},
		{hub, deviceTree + "hall/desired", `{"setpoint":22,"colour":"red"}`, topicInvalid, []string{"colour"}},
		{hub, deviceTree + "cellar/desired/setpoint", "20", topicInvalid, []string{"cellar"}},
		{core, deviceTree + "hall/desired/setpoint", "36", badPayload, []string{"setpoint", "35"}},
		{core, deviceTree + "hall/override/setpoint", "22", notAuthorised, []string{"override/setpoint"}},
		{core, deviceTree + "hall", "{}", notAuthorised, []string{"cloud"}},
		{core, "v1/nodes/n1/membership", "{}", notAuthorised, []string{"membership"}},
		{core, "v1/nodes/n1/status", "{}", notAuthorised, []string{"status"}},
		{core, "v1/nodes/n1/sync/up", "x", notAuthorised, []string{"sync/up"}},
		{core, deviceTree + "hall/conflict/setpoint", "{}", notAuthorised, []string{"conflict"}},
		{core, deviceTree + "hall/reported/temperature", "warm", badPayload, []string{"temperature", "float"}},
		{core, deviceTree + "hall/desired/temperature", "20", notAuthorised, []string{"read-only"}},
		{core, "v1/nodes/n2/devices/hall/reported/temperature", "20", 0, []string{"n2"}},
	} {
		err := s.Publish(tt.at, tt.topic, tt.value)
		var refused *client.Refused
		require.ErrorAs(t, err, &refused, tt.topic)
		if tt.code != 0 {
			require.Equal(t, tt.code, refused.Code, "%s: %v", tt.topic, err)
		}
		require.NotEmpty(t, refused.Reason, tt.topic)
		for _, text := range tt.says {
			require.Contains(t, refused.Reason, text, tt.topic)
		}
	}
	require.Equal(t, before, []string{watchedTopics(cloud), watchedTopics(local)}, "what is refused changes nothing")
	s.InStep()
}

// A client of MQTT 3.1.1 can't be told in its acknowledgement.
func TestRefusalsOfOldClients(t *testing.T) {
	t.Parallel()
	stand.RequirePrograms(t, "mosquitto_pub")
	s := newHallStand(t)
	for _, tt := range []struct{ broker, topic, value, says string }{
		{s.Hub.MQTT, deviceTree + "hall/reported/temperature", "99", "edge"},
		{s.Core(), deviceTree + "hall/override/setpoint", "9", "edge"},
		{s.Core(), deviceTree + "hall/reported/temperature", "hot", "temperature"},
	} {
		refused := s.Watch(tt.broker, "v1/refused/old-client", nil)
		shows := s.Watch(tt.broker, tt.topic, nil)
		ctx, cancel := context.WithTimeout(t.Context(), stand.WaitTimeout)
		defer cancel()
		host, port, _ := strings.Cut(tt.broker, ":")
		out, err := exec.CommandContext(ctx, "mosquitto_pub", "-h", host, "-p", port, "-V", "311", "-i", "old-client",
			"-q", "1", "-t", tt.topic, "-m", tt.value).CombinedOutput()
		require.NoError(t, err, "it is acknowledged: %s", out)
		m := refused.AwaitThat("v1/refused/old-client", func(m client.Message) bool { return len(m.Payload) > 0 })
		require.False(t, m.Retained)
		require.Contains(t, string(m.Payload), tt.topic)
		require.Contains(t, string(m.Payload), tt.says)
		require.Empty(t, shows.Tree())

		late := s.Watch(tt.broker, "v1/#", nil)
		late.AwaitThat(deviceTree+"hall", func(m client.Message) bool { return len(m.Payload) > 0 })
		require.NotContains(t, late.Tree(), "v1/refused/old-client", "it is not retained")
	}
	all, err := s.Metrics(s.Node("n1").HTTP)
	require.NoError(t, err)
	require.GreaterOrEqual(t, all["edgebus_core_refused_total"], 1.0)
}

// Both sides write while they can't hear each other. Each property ends as its
// policy says, and who lost is told.
func TestBothSidesWriteOffline(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired", `{"setpoint":20,"valve":20,"fan":20}`))
	local, cloud := s.Watch(s.Core(), "v1/nodes/n1/#", nil), s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", nil)
	for _, p := range []string{"setpoint", "valve", "fan"} {
		local.Await(deviceTree+"hall/desired/"+p, "20")
	}
	cutLink(t, s)
	cloud.Await("v1/nodes/n1/state", "offline")

	// fan: first the cloud, then the node, which is the latest.
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired", `{"setpoint":30,"valve":30,"fan":30}`))
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired/setpoint", "31"))
	time.Sleep(2 * time.Millisecond) // versions are told apart by cause, but policy latest asks the clock
	require.NoError(t, s.Publish(core, deviceTree+"hall/desired", `{"setpoint":10,"valve":10,"fan":10}`))
	require.NoError(t, s.Publish(core, deviceTree+"hall/reported/temperature", "12.5"))
	for _, p := range []string{"setpoint", "valve", "fan"} {
		local.Await(deviceTree+"hall/desired/"+p, "10")
	}
	s.Node("n1").Net.Heal()
	cloud.Await("v1/nodes/n1/state", "online")

	local.Await(deviceTree+"hall/desired/setpoint", "31") // policy cloud
	local.Await(deviceTree+"hall/override/setpoint", "")
	local.Await(deviceTree+"hall/desired/valve", "10") // policy edge
	local.Await(deviceTree+"hall/desired/fan", "10")   // policy latest
	s.InStep()
	cloud.Await(deviceTree+"hall/desired/valve", "30") // the wish is not written over
	cloud.Await(deviceTree+"hall/override/valve", "10")
	cloud.Await(deviceTree+"hall/override/setpoint", "")
	cloud.Await(deviceTree+"hall/reported/temperature", "12.5")
	for p, winner := range map[string]string{"setpoint": "desired", "valve": "override", "fan": "override"} {
		m, ok := cloud.Get(deviceTree + "hall/conflict/" + p)
		require.True(t, ok, p)
		require.Contains(t, string(m.Payload), `"winner":"`+winner+`"`, p)
	}
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := callAPI(t, http.MethodGet, s.DeviceURL("hall"))
		if err != nil {
			return err
		}
		return requireParts(string(text), "TwinConflict", `setpoint: override \"10\" against desired \"31\", desired won`,
			`valve: override \"10\" against desired \"30\", override won`)
	})

	// The cloud wants something after all: that is the latest, and the end of it.
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired/fan", "33"))
	local.Await(deviceTree+"hall/desired/fan", "33")
	require.NoError(t, s.Publish(core, deviceTree+"hall/desired/valve", ""))
	local.Await(deviceTree+"hall/desired/valve", "30")
	cloud.Await(deviceTree+"hall/conflict/valve", "")
	s.InStep()
}
