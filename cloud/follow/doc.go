// SPDX-License-Identifier: Apache-2.0

// Package follow copies a hub's log to another machine while it is written, with what belongs to it and is no secret, and keeps the copy fit to
// be taken over.
//
// It never sends a private key, never writes over a good copy before the next is whole, and never goes on with a log that isn't the one
// that it has copied.
//
// # Files, in reading order
//
//	wire.go      the stream: frames, files, and how far the hub is
//	server.go    the hub's side, for users with the role follower
//	copies.go    what followers say of their copies, in metrics and for edgebus doctor
//	files.go     which files go with the log, and which keys are only compared
//	follower.go  the other side: what comes is applied, and it connects again
//	copy.go      the directory of a copy, and one that is begun anew beside it
//	state.go     what a copy says of itself, in files and for Prometheus
//
// # Where to add
//
//   - a file that a hub needs beside its log: Sent or Compared (files.go), by whether who may read the log may have it.
//   - a message of the stream: a kind in wire.go; a follower ignores kinds that it doesn't know.
package follow
