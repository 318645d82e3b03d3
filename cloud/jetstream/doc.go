// SPDX-License-Identifier: Apache-2.0

// Package jetstream is an engine of package ordered: a log that NATS servers replicate, as one stream of JetStream in which a message is a frame and
// its sequence the position.
//
// It never makes the stream by itself, reads without a consumer, and takes no answer for anything but what it says: whether an append whose answer
// did not come is in the log is for its caller to find out.
//
// # Files, in reading order
//
//	jetstream.go  Log: how it is made, opened, appended to and read
//	stream.go     the stream's settings, and what is asked of JetStream's interface
//	servers.go    what the servers are like: whether they can be relied on, and whether strangers may write
//	status.go     how the log is at the moment
//	disk_*.go     how much a disk has room for
//
// # Where to add
//
//   - what the stream must be like: streamConfig.wrong in stream.go, with a stream that isn't in TestServersAndStreamsThatMayLoseFramesAreRefused.
//   - what a server must be like: serverState.judge in servers.go, and a row in docs/cluster.md.
package jetstream
