// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"encoding/json"
	"fmt"
	"strings"
)

// device is what an announcement says of one.
type device struct {
	id         string
	properties map[string]string
	// withheld are properties that it would have if what they depend on were understood.
	withheld map[string]string
}

// commonProperties are there of each device, if only empty, so that a device template may have any of them.
var commonProperties = []string{
	"MQTT_NAME", "MQTT_MODEL", "MQTT_MANUFACTURER", "MQTT_VERSION", "MQTT_STATE_TOPIC", "MQTT_STATE_PATH", "MQTT_STATE_ON", "MQTT_STATE_OFF",
	"MQTT_COMMAND_TOPIC", "MQTT_COMMAND_PAYLOAD", "MQTT_PAYLOAD_ON", "MQTT_PAYLOAD_OFF", "MQTT_AVAILABILITY", "MQTT_AVAILABILITY_MODE",
	"MQTT_AVAILABILITY_TOPIC", "MQTT_AVAILABILITY_PATH", "MQTT_PAYLOAD_AVAILABLE", "MQTT_LEFT_OUT",
}

// leaveOut notes what of the announcement isn't understood.
func (d *device) leaveOut(what, text string) {
	d.properties["MQTT_LEFT_OUT"] = strings.TrimPrefix(d.properties["MQTT_LEFT_OUT"]+fmt.Sprintf("; %.100s: %.200s", what, text), "; ")
}

// withhold takes properties away.
func (d *device) withhold(names ...string) {
	for _, name := range names {
		d.withheld[name] = d.properties[name]
		delete(d.properties, name)
	}
}

// available says where the device says that it is there. MQTT_AVAILABILITY has all of that; MQTT_AVAILABILITY_TOPIC the last source, which is
// the device's own, unless another one is enough.
func (d *device) available(mode string, list ...availabilitySource) {
	if len(list) == 0 {
		return
	}
	p := d.properties
	text, _ := json.Marshal(list) // can be written
	if len(text) > maxText {
		d.leaveOut("availability", "more than 2048 bytes")
		return
	}
	p["MQTT_AVAILABILITY"], p["MQTT_AVAILABILITY_MODE"] = string(text), mode
	if last := list[len(list)-1]; len(list) == 1 || mode == "all" {
		p["MQTT_AVAILABILITY_TOPIC"], p["MQTT_AVAILABILITY_PATH"], p["MQTT_PAYLOAD_AVAILABLE"] = last.Topic, last.Path, last.Available
	}
}
