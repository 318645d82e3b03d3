// Package bolt is the hub's embedded store: one bbolt file, written by one
// goroutine that commits everything that waits in one transaction, and an index
// in memory that serves all reads.
//
// It never acknowledges a write before the file is synced, never lets a reader
// wait for a writer or a writer for a watcher, and never interprets what it keeps.
//
// # Files, in reading order
//
//	bolt.go      Store: its options, opening, closing, identity, snapshots for backups, restoring
//	format.go    what is in the file, and how records are encoded
//	index.go     the index in memory: versions of objects in order, tables of kinds, snapshots
//	list.go      reading lists, page by page, from snapshots that stay as they were
//	commit.go    the committer: batches of writes, and what becomes of a commit that failed
//	watch.go     streams of changes
//	replicas.go  what nodes reported, beside the objects
//	load.go      the file to the index, when it is opened
//	check.go     Check: the file against the index
//
// # Where to add
//
//   - a bucket, or a field of a record: format.go, then recordChange.write (commit.go) and reader (load.go); formatVersion rises, and a file of
//     another one is refused.
//   - an option of a list: table.page (list.go).
//   - a rule that every backend must keep: test/storetest, which this package's tests run.
package bolt
