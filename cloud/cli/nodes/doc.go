// SPDX-License-Identifier: Apache-2.0

// Package nodes has the commands for nodes: how they join and leave (invite, approve, deny, node, authority, mapper), and what runs on
// them (rollout, upgrade, artifact, blob).
//
// It never changes a node itself: it writes objects, and the hub and the node's agent do the rest. Only mapper edits a file, of the
// machine that it runs on.
//
// # Files, in reading order
//
//	join.go            invite, approve, deny, node revoke, node decommission: how nodes join and leave
//	authority.go       authority: the certificates of the hub's authority
//	mapper.go          mapper add: a mapper's credential in the core's settings
//	rollout.go         rollout
//	upgrade.go         upgrade
//	artifact.go        artifact: signed bundles of programs; blob.go: contents by digest
//
// # Where to add
//
//   - a command on nodes: a file here, and its name in Commands (join.go).
//   - a part of the line that shows a rollout: progressLine (rollout.go).
//   - a kind that only gets shown: nothing, get and describe do that.
package nodes
