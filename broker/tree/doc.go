// Package tree is what an owner of a tree of topics behind the broker is made of, the
// same on the hub (cloud/twin) and on a node (edge/twin): Host, the loop that takes
// writes as steps, commits them in batches, publishes and answers; the conversion between
// entries of a node's maps and messages; and the walk over a tree for retained messages.
//
// It never stores anything, and knows no rule of devices: what a step does, and how a batch
// is committed, is its owner's.
//
// Read host.go first, then tree.go (messages), walk.go (retained messages), queue.go and outage.go (what happens while nothing can
// be stored).
package tree
