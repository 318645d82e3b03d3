// SPDX-License-Identifier: Apache-2.0

// Package tree is what an owner of a tree of topics behind the broker is made of, the
// same on the hub (cloud/twin) and on a node (edge/twin): Host, the loop that takes
// writes as steps, stores them in batches, publishes and answers; the conversion between
// entries of a node's maps and messages; and the walk over a tree for retained messages.
//
// It never stores anything, and knows no rule of devices: what a step does, and how a batch
// is stored, is its owner's.
//
// # Files, in reading order
//
//	host.go      the loop, and what it needs of its owner
//	queue.go     the steps that wait, and whose turn it is
//	outcomes.go  when all messages of a batch are on disk
//	outage.go    what happens while nothing can be stored
//	tree.go      entries as messages, and messages as values
//	traces.go    what of a batch belongs to traces, and how the link carries that
//	walk.go      retained messages of a tree, bit by bit
//	mappers.go   which mappers a node knows, and what they say is wrong
//
// # Where to add
//
//   - metadata beside a value: ParseStored and ValueMessage (tree.go), and resource.StoredValue
//   - a stage of a batch: BatchStages and Host.step (host.go)
//   - a limit on steps: Host.step for a batch, queue.fits (queue.go) for one sender
package tree
