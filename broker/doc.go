// Package broker is the MQTT broker that the hub and the core embed: one package, the same behaviour on both sides.
// It never decides what a topic below v1/ means, never stores one (its Tree does both), and lets no type of the
// protocol library out. Nothing that a client sends may stop the process, and no client can make another wait.
//
// The protocol library (mochi) gives the codec alone. Package session queues messages for a client and writes them.
//
// # Files, in reading order
//
//	broker.go      Broker, its life (New, Serve, Close), and the interfaces Tree and Presence
//	options.go     what a broker is made from
//	packet.go      Message and Identity; the check of a packet's form before it is decoded; reason codes
//	listener.go    listening sockets: accept rate, pending connections, WebSocket. socket_*.go: the short way to a socket;
//	               unixsocket.go: Unix sockets, at which the kernel says who connects
//	conn.go        one connection: what its parts are, the read loop, the end
//	frames.go      its read buffer, which splits what arrives into packets
//	keepalive.go   when its client has to be heard of again
//	connect.go     its handshake: CONNECT, identity, session, CONNACK
//	will.go        its will: stored, published or dropped
//	access.go      who a client is (authenticator), what it may do (acl), sign-in of HTTP requests
//	logins.go      attempts to sign in: how many, and how many passwords are checked at a time
//	quotas.go      how much one user, node or address may hold
//	throttle.go    how much of a connection is read before others come: the quantum
//	clients.go     sessions with and without a connection: takeover, expiry, wills, presence
//	publish.go     PUBLISH: checks, acceptance, acknowledgements in order, back-pressure
//	parts.go       large messages of nodes that arrive in parts
//	route.go       who gets a message, and its way into the sessions and the journal
//	subscribe.go   SUBSCRIBE, UNSUBSCRIBE, the index of subscriptions
//	retained.go    retained messages of users' own topics
//	persist.go     the journal: records, commits, loading
//	linkqueue.go   the session that a core's link to its hub takes messages from
//	drain.go       connections that were ended: what their clients had sent before is read, within bounds
//	metrics.go     metrics, Report, $SYS
//	syscall_*.go   system calls on sockets that return at once
//
// # A QoS 1 message, from read to PUBACK and to the subscriber
//
//  1. conn.read (conn.go) takes a frame. A plain PUBLISH that needs neither the tree nor the disk goes through
//     publisher.fastPublish (publish.go) straight into the sessions; any other is checked (wellFormed, packet.go), decoded, and
//     given to publisher.publish.
//  2. publisher.publish (publish.go) resolves the topic alias, reserves a place among the connection's acknowledgements
//     (pendingAcks.reserve: this is where the receive maximum counts), and waits while the disk or the tree is behind.
//  3. Broker.accept (publish.go) checks the topic and the publisher's rights (Broker.check). A topic below v1/ goes to
//     Tree.Publish, which calls Broker.Publish or Broker.Pass once it has committed; any other goes to Broker.send.
//  4. Broker.send (route.go) finds the route of the topic (router.route: from memory, or built from the index and the acl),
//     queues the message in each subscriber's session, and commits what durable sessions and the retained message need.
//  5. When that is on disk, or nothing has to be, unackedPublish.finish (publish.go) queues the PUBACK, in the order of the
//     connection's publishes; a refusal goes in it as a reason code (codeOf, packet.go).
//  6. The session's writer (package session) sends the message to the subscriber, within its receive maximum, and keeps it
//     until conn.fastPuback or conn.handle (conn.go) gets the subscriber's PUBACK.
//
// # Where to add
//
//   - a limit on publishing, such as a rate per topic: Broker.check (publish.go) for a refusal with a reason, or readThrottle.countPacket
//     (throttle.go) to read the sender more slowly. publisher.fastPublish skips check: a topic with a limit must not be open
//     (route.open, set in router.build, route.go).
//   - a limit on what a user may hold: quotas (quotas.go).
//   - a metric: metrics.go, and docs/metrics.md.
package broker
