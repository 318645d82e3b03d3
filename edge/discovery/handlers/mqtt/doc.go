// SPDX-License-Identifier: Apache-2.0

// Package mqtt is the discovery handler for devices that announce themselves on the node's own broker: by Home Assistant's MQTT
// discovery, zigbee2mqtt's list of devices, Tasmota's and Shelly's announcements, and births of Sparkplug B. The devices have the
// properties that a Device for mapper-mqtt needs; what of an announcement isn't understood is left out and told.
//
// It never publishes: it finds what is retained, and what devices publish while it is connected.
//
// # Files, in reading order
//
//	mqtt.go           a call of the handler, and the table of what was announced
//	device.go         what is known of a device, and what of it is left out
//	zigbee2mqtt.go    zigbee2mqtt and Tasmota, whose announcements are lists and records
//	unretained.go     Shelly and Sparkplug B, whose announcements no broker retains
//	homeassistant.go  Home Assistant's discovery payloads
//	template.go       as much of Home Assistant's templates as mapper-mqtt can do
//	abbreviations.go  Home Assistant's abbreviations
//
// # Where to add
//
//   - a format: a type with format's methods, on announcementTable, in formats (mqtt.go), and a row in docs/discovery-handlers.md.
//   - a form of templates: template.go, and a row in TestHomeAssistantsForms.
package mqtt
