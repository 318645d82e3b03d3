// SPDX-License-Identifier: Apache-2.0

// Package broker is the MQTT broker that the hub and the core embed: one package, the same behaviour on both sides.
// It never decides what a topic below v1/ means, never stores one (its Tree does both), and lets no type of the
// protocol library out. Nothing that a client sends may stop the process, and no client can make another wait.
//
// The protocol library (mochi) gives the codec alone. Package session queues messages for a client and writes them.
//
// # Files, in reading order
//
//	broker.go      Broker: what it is put together from, its life (New, Serve, Close), the interfaces Tree and Presence
//	options.go     what a broker is made from
//	packet.go      Message and Identity; the check of a packet's form before it is decoded; reason codes
//	listener.go    listening sockets: accept rate, pending connections, WebSocket. socket_*.go: the short way to a socket;
//	               unixsocket.go: Unix sockets, at which the kernel says who connects
//	carrier.go     listening for a broker that is elsewhere; carried.go: what comes from there
//	conn.go        one connection: what its parts are, the read loop, the end
//	frames.go      its read buffer, which splits what arrives into packets
//	keepalive.go   when its client has to be heard of again
//	connect.go     its handshake: CONNECT, identity, session, CONNACK
//	will.go        its will: stored, published or dropped
//	drain.go       how it is read to its end when the broker ends it, within bounds
//	signin.go      who a client is: the authenticator, and the sign-in of HTTP requests
//	browsers.go    people who sign in with a browser: cookies, /session
//	upgrade.go     MQTT over WebSocket at a path of an HTTP server
//	programconn.go what the program itself does as a client, such as its views
//	logins.go      attempts to sign in: how many, and how many passwords are checked at a time
//	access.go      what a client may do
//	quotas.go      how much one user, node or address may hold
//	throttle.go    how much of a connection is read before others come: the quantum
//	clientsession.go      one session, with or without a connection: its subscriptions, timers and end
//	clients.go     all of them, by client identifier: which connection has a session, takeover; each end, as a table
//	sessions.go    what the program and operators ask of sessions, and how they end them
//	presence.go    connections, as the program is told of them
//	publish.go     PUBLISH: topic aliases, the fast path, acknowledgements in order, back-pressure
//	parts.go       large messages of nodes that arrive in parts
//	admission.go   which messages are accepted, and what their publisher is told of a refusal
//	dispatcher.go  a message's way into the sessions and the journal
//	route.go       who gets the messages of a topic
//	subscribe.go   SUBSCRIBE, UNSUBSCRIBE, the index of subscriptions
//	retained.go    retained messages of users' own topics
//	persist.go     the journal: records, commits, loading
//	linkqueue.go   the session that a core's link to its hub takes messages from
//	metrics.go     metrics and Report
//	sys.go         the same as topics below $SYS
//	syscall_*.go   system calls on sockets that return at once
//
// # Packages, in reading order
//
//	session     one client's queue of messages, and what sends them
//	journal     records on disk: sessions and retained messages
//	ordered     the port of the log that a hub's state is in
//	sealed      a log of encrypted and chained frames above what another machine keeps
//	wal         the log that the journal and the core's store write to
//	quota       how much each user and all of them may hold
//	tree        what hub and core have in common as owners of the tree below v1/
//	calls       commands: requests with an answer, never stored
//	history     what the properties of devices were
//	audit       the audit log
//	alerts      the rules for Prometheus evaluated here, and alarms of devices: shown, and sent on
//	views       devices in the vocabulary of other systems, such as Home Assistant
//	mqttserver  what hub and core do with a broker as processes: rules, journal, backup, report
//	client      the MQTT client, which mappers use as well
//	daemon      what processes have in common; it knows no broker
//
// # A message on its way
//
//	Message                       as its publisher gave it: a client, with its Identity, or the program
//	unackedPublish                a client's PUBLISH, until it is acknowledged to that client
//	will                          one that is published when its client is lost
//	session.Message               as subscribers get it, stamped: shared by all sessions, the journal, and what is retained
//	messageCommit                 what has to be on disk for it: a record for each durable session, and the retained message
//	session.DeliveryOptions       how one session gets it, by its matching subscriptions
//	session.UncommittedDelivery   it in the queue of a durable session, until the commit has an outcome
//
// Package session's doc says what it is inside a session.
//
// # A QoS 1 message, from read to PUBACK and to the subscriber
//
//  1. conn.read (conn.go) takes a frame. A plain PUBLISH that needs neither the tree nor the disk goes through
//     publisher.fastPublish (publish.go) straight into the sessions; any other is checked (wellFormed, packet.go), decoded, and
//     given to publisher.publish.
//  2. publisher.publish (publish.go) resolves the topic alias, reserves a place among the connection's acknowledgements
//     (pendingAcks.reserve: this is where the receive maximum counts), and waits while the disk or the tree is behind.
//  3. admission.accept (admission.go) checks the topic and the publisher's rights (admission.check). A topic below v1/ goes to
//     Tree.Publish, which calls Broker.Publish or Broker.Pass once it has committed; any other goes to
//     dispatcher.send.
//  4. dispatcher.send (dispatcher.go) finds the route of the topic (router.route: from memory, or built from the index and the acl),
//     queues the message in each subscriber's session, and commits what durable sessions and the retained message need.
//  5. When that is on disk, or nothing has to be, unackedPublish.finish (publish.go) queues the PUBACK, in the order of the
//     connection's publishes; a refusal goes in it as a reason code (codeOf, packet.go).
//  6. The session's writer (package session) sends the message to the subscriber, within its receive maximum, and keeps it
//     until conn.fastPuback or conn.handle (conn.go) gets the subscriber's PUBACK.
//
// # Where to add
//
//   - a limit on publishing, such as a rate per topic: admission.check (admission.go) for a refusal with a reason, or
//     readThrottle.countPacket (throttle.go) to read the sender more slowly. publisher.fastPublish skips check: a topic with a limit must not be open
//     (route.open, set in router.build, route.go).
//   - a limit on what a user may hold: quotas (quotas.go).
//   - a metric: metrics.go, and configs/deploy/monitoring.yaml.
package broker
