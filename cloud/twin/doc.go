// SPDX-License-Identifier: Apache-2.0

// Package twin is the hub's end of every link: it holds two maps for each node, the one that the cloud owns (down),
// derived from the objects in the store, and the one that the node owns (up), from which the objects' status is derived.
//
// Both directions are level-triggered. The map down is derived from Devices and DeviceModels each time one of them changes,
// and is not stored a second time. Steps are taken by one goroutine (see tree.Host), as many together as wait; what
// the nodes reported is committed before it is published.
//
// It never writes a Device's spec but for a desired write that keeps the rules of its model, never takes a node's word for a
// key that the edge doesn't own, and never waits for a node.
//
// # Files, in reading order
//
//	twin.go        Twins: its parts, the batch of steps, commit, what happens when the store fails
//	node.go        node: its two maps, what is stored of the map up, and how documents and desired values are put into the map down
//	nodes.go       nodes: those that are known; what becomes of a deleted Node's
//	connection.go  the link of a node begins, ends and brings messages; what they change
//	otherhub.go    nodes that have what another hub gave them
//	objects.go     objects of the store, at the start and as they change, to the parts that follow them
//	devices.go     devices: Devices and their models to maps down
//	projections.go documents: objects of other kinds to maps down
//	desired.go     desiredWrites: writes of desired values by clients; deliveryWaits: they are answered once durable sessions have them
//	status.go      statusWriter: the statuses of Devices, which are derived from what nodes reported, and of Nodes
//	events.go      events of Devices and Nodes
//	reports.go     Reports: what nodes own at topics of one kind, for controllers
//	links.go       links: how the nodes' links are
//	http.go        httpPresence: nodes that speak HTTP and have no link
//	read.go        retained messages
//
// # Where to add
//
//   - a kind of object that nodes get documents of: a row of projections in cloud/projections.go, the kind and a function from an object
//     to documents, each for a key that the contract (package topics) gives to the cloud. A record for each node, under the node's name, is
//     the simplest source of them.
//   - something that a status shows: statusWriter.tryWriteDevice or tryWriteNode (status.go), from nodeFacts or devices.reportedStatus.
//   - an event: events.go, and a call where its cause is known.
package twin
