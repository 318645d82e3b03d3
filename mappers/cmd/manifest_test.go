// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestWhatAMapperFindsIsWrittenAsManifestsThatCanBeApplied(t *testing.T) {
	var out bytes.Buffer
	low := 5.0
	require.NoError(t, WriteManifests(&out, FoundDevice{
		Name: "AHU 1 (Küche)", Protocol: "bacnet", Config: map[string]string{"address": "10.0.0.9"},
		Properties: []FoundProperty{
			{Name: "Supply Temp.", Type: "float", Unit: "°C", Config: map[string]string{"object": "analogInput:1"}},
			{Name: "supply-temp", Type: "float", Writable: true, Minimum: &low, Config: map[string]string{"object": "analogValue:1"}},
			{Name: "Mode", Type: "string", Enum: []string{"off", "on"}, Words: []FoundWord{{"off", []string{"1"}, "1"}, {"on", []string{"2"}, "2"}}, Config: map[string]string{"object": "MSV:1"}},
			{Name: "!!", Type: "string", Config: map[string]string{"object": "CSV:1"}},
		},
	}))
	docs := bytes.Split(out.Bytes(), []byte("\n---\n"))
	require.Len(t, docs, 2)
	var model resource.DeviceModel
	var device resource.Device
	require.NoError(t, yaml.UnmarshalStrict(docs[0], &model))
	require.NoError(t, yaml.UnmarshalStrict(docs[1], &device))
	require.NoError(t, model.Validate())
	require.NoError(t, device.Validate())
	names := []string{}
	for _, p := range model.Spec.Properties {
		names = append(names, p.Name)
	}
	assert.Equal(t, []string{"supply-temp", "supply-temp-2", "mode", "property"}, names)
	assert.Equal(t, "ahu-1-kueche", device.Metadata.Name)
}
