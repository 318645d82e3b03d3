// SPDX-License-Identifier: Apache-2.0

// Package mqtt drives devices that speak MQTT themselves, at the node's own broker: a zigbee2mqtt lamp, a Tasmota plug, a sensor
// that publishes JSON. A property is read from a topic and a path in the JSON of its payload, and written to a topic with a template.
//
// A Device's protocol config:
//
//	availability: {topic}/availability   availabilityPath: state   available: online
//	get: {topic}/get                     getPayload: '{"state":""}'   getEvery: 30s   asks the device for its state
//	sparkplug: group/edge node/device    a device of Sparkplug B
//	topic: zigbee2mqtt/lamp              a parameter: any other key is one, for {key} in the settings of model and Device
//
// A visitor's config:
//
//	state: "{topic}"         path: state        where the property's value is
//	command: "{topic}/set"   payload: '{"state":{json}}'   qos: 1   retain: false
//	metric: Pump/On          of Sparkplug B
//
// An event has state and path: each message that is not retained is one. A command has command, and payload with {value} or {json} for
// its input.
//
// The package subscribes to no wildcards but those of a Sparkplug edge node, and never touches the bus' own topics. It never repeats a command by itself.
//
// # Files, in reading order
//
//	settings.go the table of settings
//	config.go        the settings of a Device and of its model's visitors
//	value.go         what a payload says, and what a command is
//	availability.go  whether the device is there
//	mqtt.go          the driver, its connection and its sessions
//	events.go        events and commands of the model
//	sparkplughost.go  the state of a host of Sparkplug B
//	sparkplug.go     Sparkplug B: edge nodes, births and aliases
//	zigbee2mqtt.go   a model of what a zigbee2mqtt device exposes
//	browse.go        mapper-mqtt browse, and browsesparkplug.go of an edge node of Sparkplug
//
// # Where to add
//
//   - a setting: config.go, docs/mqtt-devices.md, and a row in the test of settings that can't be.
//   - a habit of devices: value.go, and a row in value_test.go.
package mqtt
