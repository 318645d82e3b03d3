// SPDX-License-Identifier: Apache-2.0

// Package embedded lists the handlers that are linked into edgediscovery: one file each, which the build tag no_NAME leaves out. It
// never starts one; which of them serve is a setting.
//
// # Files, in reading order
//
//	embedded.go   Programs
//	debugecho.go, udev.go, onvif.go, opcua.go, mdns.go, mqtt.go, modbus.go, bacnet.go
//
// # Where to add
//
//   - a handler: a file with its name.
package embedded
