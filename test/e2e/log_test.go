// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/harness"
)

// A session as many are: a device joins, is wanted something of, refuses something. Each
// program's log says of which node, device and version it speaks, always in the same
// words, and shows no values to whoever may read logs.
func TestLogsSayWhatTheySpeakOf(t *testing.T) {
	t.Parallel()
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	defer w.Close()
	ctx := t.Context()
	require.NoError(t, w.Start(ctx, "hub"))
	samples, err := configs.Samples()
	require.NoError(t, err)
	for _, s := range samples {
		require.NoError(t, w.Apply(ctx, []byte(strings.ReplaceAll(string(s.YAML), "nodeName: demo", "nodeName: n1"))))
	}
	require.NoError(t, w.Start(ctx, "core"))
	require.NoError(t, w.Start(ctx, "virtual"))
	const lamp = "v1/nodes/n1/devices/lamp/"
	soon := 10 * time.Second
	require.NoError(t, harness.Await(ctx, w.Hub.MQTT, lamp+"state", "online", soon))
	wish := func(property, value string) error {
		return harness.Publish(ctx, w.Hub.MQTT, client.Message{Topic: lamp + "desired/" + property, Payload: []byte(value), QoS: 1}, nil)
	}
	require.NoError(t, wish("brightness", "41"))
	require.NoError(t, harness.Await(ctx, w.Hub.MQTT, lamp+"reported/brightness", "41", soon))
	require.ErrorContains(t, wish("brightness", "hush-hush"), "hush-hush")
	require.NoError(t, w.Term("virtual"))
	require.NoError(t, w.Term("core"))
	require.NoError(t, w.Term("hub"))

	for _, program := range []string{"hub", "core", "virtual"} {
		text, err := os.ReadFile(w.LogFile(program))
		require.NoError(t, err)
		versions := 0
		for line := range strings.Lines(string(text)) {
			versions += checkLine(t, program, line)
		}
		if program != "virtual" {
			require.Positive(t, versions, "%s says nothing of the version that was wanted", program)
		}
	}
}

var otherSpelling = regexp.MustCompile(`"(nodeName|node_name|Node|deviceName|device_name|dev|Device|Ver|key)":`)

// checkLine checks one line, and counts it if it speaks of a version.
func checkLine(t *testing.T, program, line string) int {
	t.Helper()
	fields := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(line), &fields), "%s: %s", program, line)
	for _, always := range []string{"level", "time", "message"} {
		require.Contains(t, fields, always, "%s: %s", program, line)
	}
	require.NotRegexp(t, otherSpelling, line)
	if fields["level"] != "debug" {
		require.NotContains(t, line, "hush-hush", "%s shows a value", program)
	}
	if _, ok := fields["device"]; ok {
		require.Equal(t, "n1", fields["node"], "%s: %s", program, line)
		require.Equal(t, 1, strings.Count(line, `"node":`), line)
	}
	if topic, ok := fields["topic"].(string); ok && strings.HasPrefix(topic, "v1/nodes/n1/devices/lamp") && fields["level"] != "debug" {
		require.Equal(t, "lamp", fields["device"], "%s: %s", program, line)
	}
	if _, ok := fields["ver"]; ok {
		require.Equal(t, "lamp", fields["device"], "%s: %s", program, line)
		require.Contains(t, fields, "property", "%s: %s", program, line)
		return 1
	}
	return 0
}
