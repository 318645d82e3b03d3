// SPDX-License-Identifier: Apache-2.0

// Package devices has the commands for devices and for messages: twin, device add, models, alarm, history, call, tree, pub and sub.
//
// It never writes a value but as desired, or as the message that the user gave.
//
// # Files, in reading order
//
//	twin.go       twin get, twin watch, twin set, and how that waits for the device
//	add.go        device add: a Device without a manifest
//	models.go     models: the library of DeviceModels, of which device add takes what the hub lacks
//	settings.go   device settings: which settings a protocol has
//	alarm.go      alarm list, ack, set
//	history.go    history: what a property was, drawn
//	call.go       call: a command to a device, by MQTT
//	tree.go       tree: a node's topics, live or once
//	messages.go   pub, sub
//
// # Where to add
//
//   - a command on a device: a file here, and its name in Commands (twin.go).
//   - a column of a twin: cloud/cli/printer/twin.go, which describe prints, too.
//   - a reason why a desired value isn't applied: desiredWrite.outcome (twin.go).
package devices
