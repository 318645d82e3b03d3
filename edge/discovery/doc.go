// SPDX-License-Identifier: Apache-2.0

// Package discovery is the program edgediscovery: it has discovery handlers look for what a node's Configurations ask for, and
// publishes what they find and how they are. Handlers are programs that register over gRPC, as Akri's do, or are linked into this
// one. It is an MQTT client of the node's broker, and goes on with what it has while there is none.
//
// It never trusts a handler: what one sends is bounded, and each device is checked by itself. It never changes the host, and never
// removes what another MQTT client has published.
//
// # Files, in reading order
//
//	discovery.go  Options, the program's life, the Configurations of this node
//	publish.go    what is to be on the broker, as a pure function, and how it gets there
//	call.go       one handler's call for one Configuration: its lists, and how it is
//	handlers.go   which handlers there are: those linked in, and those that register
//	bus.go        the connection to the node's broker
//	command.go    the command line
//
// # Packages, in reading order
//
//	wire      the gRPC contract between edgediscovery and handlers
//	handler   the SDK of handlers
//	handlers  the handlers of this repository
//	embedded  which of them are linked into edgediscovery
//	examples  a handler in another language
//
// # Where to add
//
//   - a handler: a package below handlers, and a file in embedded; example_test.go of package handler is one.
//   - a rule for what a handler may send: deviceList.add (call.go), or resource.DiscoveredDevice.
//   - something that is reported of handlers: configurationView.report (publish.go).
package discovery
