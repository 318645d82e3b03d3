// SPDX-License-Identifier: Apache-2.0

// Package client is the MQTT 5 client of the core's link to the hub, of mappers, tools and tests.
//
// It never stores a publish on disk, never subscribes by itself to anything but Options.Subscriptions, never hides a
// refusal, and knows no topic of the bus. No type of the codec, paho.golang, leaves the package (docs/adr/0139).
//
// It keeps the MQTT session itself, for three reasons: many publishes in flight without a goroutine for each, outcomes in
// the order of the publishes, and an outcome for each publish even if the connection ends.
//
// It promises:
//   - OnMessage gets one message at a time, in the order of arrival. A message of QoS 1 or 2 is acknowledged after
//     OnMessage has returned.
//   - Publishes are sent in the order of the calls. Each has one outcome: stored by the broker, refused (*Refused, with the
//     broker's reason), or ErrConnectionLost if it can't be known.
//   - With a session (no CleanStart, and a SessionExpiry) unacknowledged publishes are sent again, in order, once a
//     connection finds the session. Without one they end with ErrConnectionLost at once.
//
// # Files, in reading order
//
//	options.go    what a client is made from
//	message.go    messages and subscriptions as callers have them; errors
//	client.go     Client keeps connected; publishing, subscribing, requests
//	outbox.go     the outbox: the table of publishes without an outcome, and how far each is
//	conn.go       one connection, from CONNECT to its end: who reads, who writes, what each packet does to the outbox
//	events.go     the queue of messages and other events that wait for their callback, and their acknowledgement
//	codec.go      packets from and to messages and options
//	dial.go       TCP, TLS and WebSocket; why no connection could be made
//
// # Where to add
//
//   - a setting: Options, with its default in Options.withDefaults and its check in Options.validate (options.go).
//   - a property of a message: Message and its check (message.go), Message.packet and fromPacket (codec.go).
//   - an advice for a connection that fails: Options.explain (dial.go).
package client
