// Package twin is the hub's end of every link: it holds two maps for each node, the one that the cloud owns (down),
// derived from the objects in the store, and the one that the node owns (up), from which the objects' status is derived.
//
// Both directions are level-triggered. The map down is derived from Devices and DeviceModels each time one of them changes,
// and is not stored a second time. Steps are taken by one goroutine (see tree.Host), as many together as wait; what
// the nodes reported is committed before it is published.
//
// Objects of other kinds put documents into the map down by projections. To give nodes keys of one more kind, add a row to
// projections in cloud/projections.go: the kind, and a function from an object to documents, each for a key that the contract
// (package topics) gives to the cloud. A record for each node, under the node's name, is the simplest source of them.
//
// Reports is a watch, for controllers, of what nodes own at the topics of one kind.
//
// It never writes a Device's spec but for a desired write that keeps the rules of its model, never takes a node's word for a
// key that the edge doesn't own, and never waits for a node.
//
// Read twin.go first (state, batch, commit), then project.go (Devices to the map down), projections.go (other objects to it),
// node.go (connections and the map up),
// desired.go (writes of clients), status.go (the map up to objects), reports.go (the map up to controllers), events.go and
// read.go (retained messages).
package twin
