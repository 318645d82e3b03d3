// SPDX-License-Identifier: Apache-2.0

// Package wire speaks the Modbus protocol, as client and as server: over TCP with the MBAP header, over a serial line with RTU frames,
// and with RTU frames over TCP. It knows registers and coils; what they mean is the driver's.
//
// A client makes one request after the other. It never takes the late answer of a request that it has given up for the answer of the
// next one, and never repeats a request.
//
// # Files, in reading order
//
//	pdu.go     requests, and what their answers must look like
//	frame.go   how requests and answers are framed for TCP and for serial lines
//	target.go  where a device is: a host, or a serial line, which lock_unix.go (and lock_other.go) keep for one opener (lock_other.go: elsewhere it is not kept)
//	client.go  a connection, and requests over it
//	server.go  the other side, for simulated devices and tests
//
// # Where to add
//
//   - a function code: its Request in pdu.go, its length in frame.go (requestSize, answerSize), its case in server.go.
package wire
