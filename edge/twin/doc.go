// SPDX-License-Identifier: Apache-2.0

// Package twin is the core's end of the link, and the owner of its node's tree.
//
// It holds both maps: the replica of what the cloud desires, and the edge's own of what is. Local publishes, messages
// from the hub and timers are steps, taken one after the other by one goroutine (see tree.Host). As many as wait are taken
// together and committed in one transaction; acknowledgements, publishes and messages to the hub leave only after it. The store may
// keep reported values waiting whose mapper reports them again (upMap.mayWait).
//
// It never waits for the hub: with the link down, or the hub hanging, everything on the node goes on. It never writes a
// key that the cloud owns: a local write of a desired value becomes an override.
//
// # Files, in reading order
//
//	twin.go       Twin: its parts, the batch of steps, commit, what happens when the store fails
//	upmap.go      upMap, the keys that the edge owns: writing, clearing, quota; those that stay on the node
//	documents.go  downMap, what the cloud owns, and documents, what follows from its changes
//	devices.go    devices: they join, change and leave; which mapper they are for
//	overrides.go  overrides, the values in force; decideInForce is the rule of conflicts; overrideEnds, when overrides end
//	publish.go    a publish of a client of the node's broker, to the part that it is for
//	writes.go     localWrites: reported values, overrides, refusals, states, problems
//	alarms.go     alarms: values that somebody must know of
//	mappers.go    mappers: their presence, and what only they may clear
//	programreports.go   programs: the agent, edgediscovery, and the node's own status
//	link.go       hubLink: connections to the hub and its messages
//	read.go       reader: retained messages, and Devices with their twins for the local API
//	traces.go     the spans of values that belong to a trace
//	recording.go  what the history of values is told
//	history.go    deviceHistory: which Devices have changed, for watchers
//
// # Where to add
//
//   - a topic that clients of the node's broker may write: topics/table.go, then a case in Twin.applyPublish (publish.go).
//   - a document that the cloud gives to nodes: topics/table.go; what the node itself does with it, documents.deriveDocument.
//   - a key that follows from others: where its cause is derived (documents.derive), written with upMap.write.
package twin
