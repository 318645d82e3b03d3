// Package session delivers messages to the clients of an MQTT broker: for each client a queue in order, the messages that
// were sent and are not acknowledged, its own QoS 2 publishes, and, for a durable session, records of these in a journal.
//
// It never decides who gets a message, what a topic means, or who may subscribe: the broker does. Enqueueing never waits
// for a client or for the disk.
//
// Start with session.go: a [Session] has the queue and the inflight window, and outlives its connections. A [Writer]
// (writer.go) takes packets from it and writes them to one connection; a [Fanout] (fanout.go) writes to many. durable.go
// has the records, what a session keeps on disk only, and loading after a restart; replay.go sends retained messages to new
// subscriptions; parts.go cuts large messages for nodes; consumer.go takes messages inside the process; message.go has a message and its encoding for the wire.
package session
