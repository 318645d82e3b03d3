// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/json"
	"fmt"

	"github.com/edgebus/edgebus/topics/resource"
)

// benchModel has so many writable integers, p0, p1, …
func benchModel(properties int) resource.DeviceModel {
	m := resource.DeviceModel{
		TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDeviceModel},
		Metadata: resource.Meta{Name: "bench"},
	}
	for p := range properties {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{
			Name: fmt.Sprintf("p%d", p), Type: resource.TypeInt, AccessMode: resource.ReadWrite,
		})
	}
	return m
}

func benchDevice(d int) resource.Device {
	return resource.Device{
		TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice},
		Metadata: resource.Meta{Name: fmt.Sprintf("d%d", d)},
		Spec: resource.DeviceSpec{
			NodeName: "n1", DeviceModelRef: resource.ObjectRef{Name: "bench"}, Protocol: resource.Protocol{Type: "bench"},
		},
	}
}

// deviceBundle is the document of a device, as a hub sends it.
func deviceBundle(d, properties int) []byte {
	doc, _ := json.Marshal(resource.NewBundle(benchDevice(d), benchModel(properties))) // plain structs
	return doc
}
