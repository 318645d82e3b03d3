// SPDX-License-Identifier: Apache-2.0

// Package wire speaks BACnet/IP (ANSI/ASHRAE 135, annex J): a Client that finds, reads, writes and subscribes to objects of devices, and a
// Server that simulators and tests are made of. It knows ReadProperty, ReadPropertyMultiple, WriteProperty with priorities, SubscribeCOV,
// Who-Is and I-Am, registers with a BBMD as a foreign device, and reaches devices behind routers. It neither sends nor accepts segmented
// messages: who asks for too much gets an Abort, and asks for less.
//
// # Files, in reading order
//
//	names.go    object types and properties, and the names that people write for them
//	value.go    values and tags
//	frame.go    the layers around a request: BACnet/IP, network, application
//	service.go  the contents of requests and answers
//	client.go   Client: a request finds its answer
//	listen_unix.go, listen_other.go  sockets: one for answers, and some that hear broadcasts beside another program
//	server.go   Server: a device
//
// # Where to add
//
//   - a service: its number and contents in service.go, a method in client.go, and a line in FuzzPacket.
//   - a name: names.go.
package wire
