// SPDX-License-Identifier: Apache-2.0

// Package snmp drives devices that have an SNMP agent, v2c and v3: properties of a Device are objects, which are read and set; events are
// its traps.
//
// # Files, in reading order
//
//	settings.go the table of settings
//	config.go   a Device's and its model's settings
//	convert.go  values of SNMP and of properties
//	agent.go    one agent: get, set and walk, with a library that is kept from ending the program
//	snmp.go     the driver and its sessions
//	trap.go     traps and informs
//	command.go  the program: mapper-snmp, and its commands read, scan, browse
//
// # Where to add
//
//   - a setting: config.go, and the help in command.go.
//   - a type of value: convert.go.
package snmp
