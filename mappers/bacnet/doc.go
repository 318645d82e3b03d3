// SPDX-License-Identifier: Apache-2.0

// Package bacnet drives BACnet/IP devices: properties of a Device are objects' properties, which are read, written with a priority, and
// told by the device itself where it takes subscriptions (COV).
//
// # Files, in reading order
//
//	settings.go the table of settings
//	config.go    a Device's and its model's settings
//	convert.go   values of BACnet and of properties
//	bacnet.go    the driver and its sessions
//	push.go      subscriptions
//	command.go   the program: mapper-bacnet, and its commands
//	browse.go    finding devices, and writing a model of one
//	simulate.go  a simulated air handling unit
//
// # Packages, in reading order
//
//	wire  BACnet/IP itself
//
// # Where to add
//
//   - a setting: config.go, and the help in command.go.
//   - a type of object: names.go of package wire, and presentValues in convert.go.
package bacnet
