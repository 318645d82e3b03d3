// SPDX-License-Identifier: Apache-2.0

// Package session delivers messages to the clients of an MQTT broker: for each client a queue in order, the messages that
// were sent and are not acknowledged, its own QoS 2 publishes, and, for a durable session, records of these in a journal.
//
// It never decides who gets a message, what a topic means, or who may subscribe: the broker does. Enqueueing never waits
// for a client or for the disk.
//
// # Files, in reading order
//
//	session.go     a Session from outside, and what it sends next
//	message.go     a message, a packet, and their encoding for the wire
//	state.go       the states of a delivery and of its record, and what changes them
//	queue.go       a delivery, and the deliveries that wait in memory
//	window.go      the inflight window
//	backlog.go     all that waits, and the limits
//	counters.go    what was sent and what was dropped
//	inbound.go     the client's own QoS 2 publishes
//	replay.go      retained messages for new subscriptions
//	durable.go     a session that outlives the process
//	records.go     the records of such a session
//	encoding.go    what is in a record
//	diskqueue.go   what waits on disk only
//	load.go        sessions from their records
//	parts.go       large messages for nodes, in parts
//	writer.go      the packets of one connection
//	fanout.go      many connections that have something to write
//	consumer.go    messages that are taken inside the process
//
// # Where to add
//
//   - a state of a delivery, or an event: state.go, with its rows in state_test.go
//   - a reason to drop: counters.go, and the call of discard in backlog.go
//   - a record: its kind and encoding in encoding.go, its reading in load.go, and its deletion in [Session.End]
package session
