package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/client"
)

func TestTrial21WhatAWatchTells(t *testing.T) {
	object := func(text string) (o client.Object) {
		require.NoError(t, json.Unmarshal([]byte(text), &o))
		return o
	}
	lamp := func(value, ts string) client.Object {
		return object(`{"kind":"Device","metadata":{"name":"lamp","resourceVersion":"` + ts + `"},"status":{
			"twin":{"power":{"reported":{"value":"` + value + `","ts":"` + ts + `","ver":` + ts + `}}},
			"conditions":[{"type":"InSync","status":"True","lastTransitionTime":"` + ts + `"}]}}`)
	}
	h, now := history{}, time.Date(2026, 11, 22, 13, 43, 2, 0, time.UTC)
	note := func(kind string, o client.Object) string {
		text, told := h.note(kind, o, now)
		require.Equal(t, told, text != "13:43:02")
		return text
	}
	require.Equal(t, "13:43:02 (new)", note("ADDED", lamp("OFF", "1")))
	require.Equal(t, "13:43:02 power.reported: OFF → ON", note("MODIFIED", lamp("ON", "2")))
	require.Equal(t, "13:43:02", note("MODIFIED", lamp("ON", "3")), "no value has changed")
	require.Equal(t, "13:43:02 (deleted)", note("DELETED", lamp("ON", "4")))
	secret := func(value string) client.Object {
		return object(`{"kind":"Secret","metadata":{"name":"s"},"data":{"key":"` + value + `"}}`)
	}
	note("ADDED", secret("b25l"))
	require.NotContains(t, note("MODIFIED", secret("b25lIHR3bw==")), "b25l")
}

func TestTrial21CommandsAreFolded(t *testing.T) {
	const command = "mosquitto_pub -p 12883 -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 40"
	lines := folded(command, 60)
	for _, line := range lines {
		require.LessOrEqual(t, len(line), 60)
	}
	require.Equal(t, command, strings.ReplaceAll(strings.Join(lines, "\n"), " \\\n    ", " "), "as a shell reads it")
	require.Equal(t, []string{command}, folded(command, 100))
}
