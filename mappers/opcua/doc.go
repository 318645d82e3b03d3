// SPDX-License-Identifier: Apache-2.0

// Package opcua drives devices that are OPC UA servers: properties of a Device are variables of the server, which are subscribed to, read
// and written; commands are its methods.
//
// # Files, in reading order
//
//	settings.go  the table of settings
//	config.go    a Device's and its model's settings
//	convert.go   values of OPC UA and of properties
//	structure.go structures and their members
//	identity.go  this mapper's certificate, and the passwords of users
//	opcua.go     the driver and its sessions
//	push.go      subscriptions
//	events.go    the server's events
//	command.go   the program: mapper-opcua, and its commands
//	browse.go    a model of what a server has
//
// # Packages, in reading order
//
//	wire  OPC UA's binary protocol
//
// # Where to add
//
//   - a setting: config.go, and the help in command.go.
//   - a type of value: convert.go.
package opcua
