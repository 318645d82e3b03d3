// SPDX-License-Identifier: Apache-2.0

// Package edge is the core, the daemon on a node. Run wires its parts together, and does nothing else.
//
// It never contains what a part does: each is a package, or a file here.
//
// # Files, in reading order
//
//	edge.go           Run, which wires the parts together; Main
//	broker.go         what the core's broker is made from
//	link.go           the clients of the hub: the main one, that of stored bridge rules, that of blobs
//	link_commands.go  commands of the hub, and the clock by which they expire
//	link_streams.go   telemetry, events and bridged messages on their way up
//	bridge.go         which messages wait for the hub, and bridged messages on their way down
//	assemble.go       messages that come in parts
//	link_identity.go  the renewal of the node's certificate, and its end
//	link_status.go    how the link is, for the local API and metrics
//	report.go         what the node says of itself, and metrics
//	history.go        what the properties of devices were, and who asks for it
//	alerts.go         what needs somebody on this node, and who is told
//	secretskey.go     the key of the Secrets in the store
//	maintenance.go    the commands check, backup and restore
//	join.go           the command join; join_*.go: whose its files are
//
// # Packages, in reading order
//
//	store       the core's state on disk: both maps of the node's tree, and what is in force
//	twin        the owner of the node's tree: what mappers report, what is desired, overrides, commands
//	forward     what waits for the hub besides the tree: telemetry, events, bridged topics
//	blobs       large contents from the hub, by digest
//	api         the node's Devices over HTTP, for kubectl on the node
//	history     what the properties of the node's Devices were
//	push        reported values to other brokers and endpoints
//	enroll      the node's key and certificate: join, renewal, decommissioning
//	agent       the program edgeagent: files, applications, OS images, hooks (agent/files, agent/host)
//	upgrade     the part of edgeagent that replaces the core and itself
//	rules       what the hub's Rules have the node do
//	discovery   the program edgediscovery, its handlers, and the SDK for more of them
//	cmd         the programs
//
// # A Fleet's change, from the link to a file
//
//  1. The hub's message arrives at the main client of the link (link.go), and is a step of twin.Twin (twin/link.go), which has
//     package store commit it. Only then it is acknowledged, and published, retained, at the node's own broker.
//  2. The agent subscribes to it there (agent/bus.go). agent/update.go takes the newest rendered spec as an update: prepare (files beside
//     those that are there, blobs, images), then the steps of the switch, each recorded before it is taken.
//  3. agent/files brings the files to what the spec says, whole or not at all; agent/host does applications and the OS image; hooks.go
//     runs what the spec wants to be run. If the node is not healthy after it, the same steps lead back.
//  4. agent/report.go publishes what has become of it at a topic of the node's; twin/programreports.go takes that as any report.
//
// # A report, from a mapper to the hub
//
//  1. A mapper publishes devices/lamp/reported/temperature, retained, at QoS 1 (mappers/outbox.go, or any MQTT client). The broker checks who it
//     is, and gives the message to twin.Twin, since the topic is below v1/.
//  2. twin/writes.go checks it against the Device's model, and makes it an entry of the map up. Package store commits it with all that
//     waits (one fsync), and then PUBACK and the retained message leave.
//  3. topics/link sends the entry with the next number of the map, now or when the hub is there again; a later value of the same
//     key takes its place while it waits.
//  4. The hub acknowledges numbers that it has on disk. What happens there is in package cloud.
//
// # Where to add
//
//   - something that the node reports of itself: report.go, and a field of NodeStatus in topics/resource.
//   - something else that goes over the link: a part with a file of its own, and a line in newMain of link.go.
//   - a topic that programs of the node may publish: topics/table.go, and twin/publish.go if it is part of the tree.
//   - something that the agent does to its host: a step in agent/update.go, its work in a package below agent/host.
//   - a discovery handler: edge/discovery/handlers, and a file in edge/discovery/embedded; example_test.go of edge/discovery/handler is one.
package edge
