// SPDX-License-Identifier: Apache-2.0

// Package fleet decides what becomes of the nodes of Fleets: whose they are, and what their specs come to.
//
// What it decides is in pure functions: SelectorIndex.Assign (owners), ExpandTemplate, and rollout.Plan of package rollout. It never talks
// to a node.
//
// # Files, in reading order
//
//	owner.go       which fleets match a node, and whose it is; templates, expanded for a node; pure
//	selectoroverlaps.go    which fleets match the same nodes; a node's fleet as key
//	controller.go  Controllers, and the one of owners: metadata.owner, conditions of overlaps, the finalizer
//	node.go        a node of a fleet as rollouts look at it, and what a template comes to for it
//	version.go     TemplateVersions: their names, what floats in a template and what it is frozen to
//	rollout.go     the controller of rollouts: versions made, rolled out, rolled back and deleted
//	references.go  what a node with certain labels may get from fleets
//
// # Where to add
//
//   - what of a node a rollout depends on: fleetNode (node.go), and the Target that it makes.
//   - a rule of how many nodes at a time, or when: package rollout; rolloutPolicy (rollout.go) translates the Fleet's field.
//   - a kind of reference that floats: resource.NodeSpec.References, and package sources, which says what it stands for.
package fleet
