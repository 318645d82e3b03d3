// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"slices"
	"testing"
	"time"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/resource"
)

// LibraryDevices are devices of the models of the library that the driver's protocol reaches, by their names. settings has what each of these
// models needs of a Device besides what it says itself: a model that is not there has no test, and fails it.
func LibraryDevices(t *testing.T, driver mappers.Driver, settings map[string]map[string]resource.Value) map[string]mappers.Device {
	t.Helper()
	models, err := configs.LibraryModels()
	noError(t, err, "LibraryModels")
	devices := map[string]mappers.Device{}
	for _, m := range models {
		protocol := m.Spec.PropertyVisitors[0].Protocol
		if !slices.Contains(driver.Protocols(), protocol) {
			continue
		}
		config, tested := settings[m.Metadata.Name]
		requireTrue(t, tested, "%s: what does such a device say?", m.Metadata.Name)
		d := resource.Device{Metadata: resource.Meta{Name: m.Metadata.Name}}
		d.Spec.Protocol = resource.Protocol{Type: protocol, Config: config}
		devices[m.Metadata.Name], err = mappers.DeviceOf(driver, "n1", resource.NewBundle(d, m.DeviceModel), time.Second)
		noError(t, err, m.Metadata.Name)
	}
	return devices
}

// ReadAll reads all properties of a device, each in the request that it belongs to. A property without a value has the text of its error;
// one that was not read is missing.
func ReadAll(t *testing.T, s *mappers.Opened, d mappers.Device) map[string]string {
	t.Helper()
	var names []string
	for _, p := range d.Properties {
		names = append(names, p.Name)
	}
	values := map[string]string{}
	for _, group := range s.Groups(names) {
		got, err := s.Read(t.Context(), group)
		noError(t, err, "Read")
		for name, r := range got {
			if values[name] = r.Value; r.Err != nil {
				values[name] = r.Err.Error()
			}
		}
	}
	return values
}
