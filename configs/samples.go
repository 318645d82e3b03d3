// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"embed"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"
)

//go:embed samples/*.yaml
var sampleFiles embed.FS

// Sample is a resource to try things out with.
type Sample struct {
	Kind string
	Name string
	YAML []byte // as people write it, with comments
	JSON []byte // as the API takes it
}

// Samples are a simulated lamp and a simulated Modbus thermostat with their models,
// in the order in which they can be created.
func Samples() ([]Sample, error) {
	files, err := sampleFiles.ReadDir("samples")
	if err != nil {
		return nil, err
	}
	all := make([]Sample, 0, len(files))
	for _, file := range files {
		text, err := sampleFiles.ReadFile("samples/" + file.Name())
		if err != nil {
			return nil, err
		}
		s, err := parseSample(text)
		if err != nil {
			return nil, fmt.Errorf("sample %s: %w", file.Name(), err)
		}
		all = append(all, s)
	}
	return all, nil
}

func parseSample(text []byte) (Sample, error) {
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return Sample{}, err
	}
	var head struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(object, &head); err != nil {
		return Sample{}, err
	}
	return Sample{Kind: head.Kind, Name: head.Metadata.Name, YAML: text, JSON: object}, nil
}
