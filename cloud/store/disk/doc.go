// SPDX-License-Identifier: Apache-2.0

// Package disk is the hub's store: objects, and what nodes reported, as records of a journal, written by one
// goroutine that commits everything that waits in one commit, and an index in memory that serves all reads of objects.
//
// It never acknowledges a write before it is on disk, never lets a reader wait for a writer or a writer for a
// watcher, and never interprets what it keeps.
//
// # Files, in reading order
//
//	disk.go      Store: its options, opening, closing, identity, restoring
//	records.go   what is in a record, and how it is encoded
//	packed.go    statuses in memory: the text that many have in common, once
//	index.go     the index in memory: versions of objects in order, tables of kinds, snapshots
//	list.go      reading lists, page by page, from snapshots that stay as they were
//	commit.go    the committer: batches of writes
//	watch.go     streams of changes
//	mirror.go    KindMirror: a kind's objects in memory, as another store has them
//	replicas.go  what nodes reported, beside the objects
//	load.go      the records to the index, when the store is opened
//	check.go     Check: the records against the index
//
// # Where to add
//
//   - a kind of record, or a field of one: records.go, then batch (commit.go) and loader (load.go); formatVersion rises, and
//     records of another one are refused.
//   - an option of a list: table.page (list.go).
//   - a rule that every backend must keep: test/storetest, which this package's tests run.
package disk
