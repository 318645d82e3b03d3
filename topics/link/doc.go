// SPDX-License-Identifier: Apache-2.0

// Package link keeps two copies of a map in step over a lossy, reordering,
// often absent connection. One side, the Owner, writes; the other, the
// Replica, follows. A node has two such maps, one in each direction.
//
// Both are state machines held in memory. They never do I/O, never look at a
// clock and never start a goroutine, and they are not safe for concurrent use:
// a host drives them, one goroutine at a time, in a fixed order:
//
//  1. apply any number of steps: Put, Delete, Connect, Step, Resend;
//  2. call TakeChanges and, if it is Dirty, commit it in one durable transaction;
//  3. only then call ChangesStored of a Replica, call Messages and send them, and acknowledge writers.
//
// Between 1 and 3 other goroutines may read what is stored: Stored of a Replica.
//
// The order is what makes a crash harmless: nobody has heard of anything that
// is not on disk. A host whose commit fails throws the machine away and
// restores it from its store; there is nothing to undo.
//
// What travels is state, never history: a key that was written a thousand
// times while the connection was down is sent once.
//
// # Files, in reading order
//
//	message.go          messages, entries and their limits; CBOR
//	owner.go            the owner: writes, acknowledgements, lineages
//	ownerentries.go     its entries, by key and in the order in which they were written
//	ownerconnection.go  what it sends over a connection
//	replica.go          the replica: what it takes, and its quota
//	journal.go          what is stored of both, and the stored form of an entry
//	table.go            a sorted map for a million keys in little memory
//	turns.go            how much may be on its way over a line, and what goes next
//	part.go             large messages in parts
//
// # Where to add
//
//   - a field of an entry: Entry and its hash (message.go), its stored form (journal.go); Version of the messages rises
//   - a type of message: Type and check (message.go), Step of both sides; model_test.go tries every order
//   - a limit on a map: Quota (replica.go), which the owner's host and the replica both check
package link
