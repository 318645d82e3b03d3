// Package twin is the core's end of the link, and the owner of its node's tree.
//
// It holds both maps: the replica of what the cloud desires, and the edge's own of what is. Local publishes, messages
// from the hub and timers are steps, taken one after the other by one goroutine (see tree.Host). As many as wait are taken
// together and committed in one transaction; acknowledgements, publishes and messages to the hub leave only after it.
//
// It never waits for the hub: with the link down, or the hub hanging, everything on the node goes on. It never writes a
// key that the cloud owns: a local write of a desired value becomes an override.
//
// Read twin.go first (state, batch, commit), then cloud.go (what follows from the cloud's map; decide is the rule of
// conflicts), local.go (publishes of mappers and users), upmap.go (the edge's keys) and read.go (retained messages, the local API).
package twin
