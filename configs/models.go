// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

//go:embed models/*.yaml
var modelFiles embed.FS

// LibraryModel is a DeviceModel of the library, and its file as people read it.
type LibraryModel struct {
	resource.DeviceModel
	YAML []byte
}

// LibraryModels are DeviceModels of devices that are common, by their names.
func LibraryModels() ([]LibraryModel, error) {
	files, err := modelFiles.ReadDir("models")
	if err != nil {
		return nil, err
	}
	all := make([]LibraryModel, 0, len(files))
	for _, file := range files {
		var m LibraryModel
		if m.YAML, err = modelFiles.ReadFile(path.Join("models", file.Name())); err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(m.YAML, &m.DeviceModel); err != nil {
			return nil, fmt.Errorf("model %s: %w", file.Name(), err)
		}
		all = append(all, m)
	}
	return all, nil
}

// Protocols are those of the model's visitors, with commas between them.
func (m LibraryModel) Protocols() string {
	names := make([]string, len(m.Spec.PropertyVisitors))
	for i, v := range m.Spec.PropertyVisitors {
		names[i] = v.Protocol
	}
	return strings.Join(names, ",")
}
