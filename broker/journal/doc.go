// SPDX-License-Identifier: Apache-2.0

// Package journal keeps numbered records on disk, through kill -9 and power loss: a record that was put stays until it is put
// again or deleted. The commits of all callers share writes and syncs.
//
// It never looks into a record, never blocks a caller of Commit, and never repairs damage: it refuses to open, and names
// the file.
//
// It is a log in segments (package wal) and an index in memory. Groups of commits are one frame of the log each. Compaction: when most of the
// log is dead, the live records of the oldest segment are copied to the end, and the segment is removed. So disk space and the time to start are bounded by what is live.
//
// # Files, in reading order
//
//	journal.go  groups of commits, and compaction
//	load.go     the format, and reading
//	apply.go    a journal that is a copy of another one
//	version.go  which version the records are of
//
// # Where to add
//
//   - a record of the journal's own: apply.go, ownTable. A copy leaves it out, but for the version.
//   - a kind of operation: nextOp, and the format of package wal rises.
package journal
