// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"bytes"
	"encoding/json"

	"github.com/edgebus/edgebus/topics/resource"
)

// akri.sh/v0: what discovers is called discoveryHandler, and protocol in older manifests;
// what it is told may be one text.

type configurationV0 struct {
	Spec   configurationSpecV0          `json:"spec"`
	Status resource.ConfigurationStatus `json:"status,omitzero"`
}

type configurationSpecV0 struct {
	resource.ConfigurationSpec
	DiscoveryHandler *handlerV0 `json:"discoveryHandler,omitempty"`
	Protocol         *handlerV0 `json:"protocol,omitempty"`
}

type handlerV0 struct {
	Name                string                       `json:"name"`
	DiscoveryDetails    handlerDetails               `json:"discoveryDetails,omitempty"`
	DiscoveryProperties []resource.DiscoveryProperty `json:"discoveryProperties,omitempty"`
}

// handlerDetails are texts by name. A single text goes by the name of resource.OnlyDetail.
type handlerDetails map[string]scalarText

// UnmarshalJSON reads texts by name, or one text.
func (d *handlerDetails) UnmarshalJSON(raw []byte) error {
	if raw = bytes.TrimSpace(raw); len(raw) > 0 && raw[0] == '"' {
		var only scalarText
		*d = handlerDetails{}
		err := only.UnmarshalJSON(raw)
		(*d)[resource.OnlyDetail] = only
		return err
	}
	return json.Unmarshal(raw, (*map[string]scalarText)(d))
}

type instanceV0 struct {
	Spec   instanceSpecV0          `json:"spec"`
	Status resource.InstanceStatus `json:"status,omitzero"`
}

type instanceSpecV0 struct {
	resource.InstanceSpec
	CDIName opaqueJSON `json:"cdiName,omitempty"`
}

func akriKinds() []Kind {
	configuration := Kind{
		Group: "akri.sh", Version: "v0", Name: "Configuration", Plural: "configurations", Singular: "configuration",
		Canonical: resource.KindConfiguration, reconcile: reconcileHandler, BareStatus: true,
	}
	instance := Kind{
		Group: "akri.sh", Version: "v0", Name: "Instance", Plural: "instances", Singular: "instance",
		Canonical: resource.KindInstance, BareStatus: true,
	}
	return []Kind{
		configuration.pair(typedConversion(readConfiguration, showConfiguration)),
		instance.pair(typedConversion(
			func(f instanceV0) (resource.Instance, error) {
				return resource.Instance{Spec: f.Spec.InstanceSpec, Status: f.Status}, nil
			},
			func(i resource.Instance) instanceV0 {
				return instanceV0{instanceSpecV0{InstanceSpec: i.Spec}, i.Status}
			},
		)),
	}
}

func readConfiguration(f configurationV0) (c resource.Configuration, err error) {
	c.Spec, c.Status = f.Spec.ConfigurationSpec, f.Status
	h := f.Spec.DiscoveryHandler
	if h == nil {
		h = f.Spec.Protocol
	}
	c.Spec.DiscoveryHandler = resource.DiscoveryHandler{}
	if h != nil {
		c.Spec.DiscoveryHandler = resource.DiscoveryHandler{Name: h.Name, DiscoveryDetails: h.DiscoveryDetails, DiscoveryProperties: h.DiscoveryProperties}
	}
	return c, nil
}

func showConfiguration(c resource.Configuration) (f configurationV0) {
	f.Spec.ConfigurationSpec, f.Status = c.Spec, c.Status
	h := c.Spec.DiscoveryHandler
	f.Spec.DiscoveryHandler = &handlerV0{Name: h.Name, DiscoveryDetails: h.DiscoveryDetails, DiscoveryProperties: h.DiscoveryProperties}
	return f
}

// reconcileHandler leaves protocol out where discoveryHandler says the same: it is newer.
func reconcileHandler(form, _ jsonObject) {
	if spec, _ := form["spec"].(jsonObject); spec["discoveryHandler"] != nil {
		delete(spec, "protocol")
	}
}
