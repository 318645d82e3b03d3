// SPDX-License-Identifier: Apache-2.0

// Package wire is a client of OPC UA's binary protocol over TCP (parts 4 and 6 of the standard): endpoints, secure channels with the
// policies that are not broken, sessions, and the services that a mapper needs. Whatever a server sends is bounded before it is read.
//
// # Files, in reading order
//
//	buffer.go        simple values
//	node.go          identifiers of nodes
//	value.go         variants, and values with quality and time
//	status.go        status codes
//	policy.go        the security policies: how keys are made and used
//	channel.go       a connection with its secure channel: chunks, sealed and opened
//	session.go       endpoints, and how a session begins
//	servers.go       which servers there are, and what they are
//	services.go      read, write, call, browse
//	subscription.go  changes and events that a server tells by itself
//	structure.go     structures, by what the server says of their types
//	dictionary.go    and how older servers say it
//
// # Where to add
//
//   - a service: its numbers and a method in services.go, and a line in FuzzAnswers.
//   - a security policy: policy.go, and TestEachPolicyOpensWhatItSeals.
package wire
