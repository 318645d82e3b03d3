// SPDX-License-Identifier: Apache-2.0

// Package journal keeps numbered records on disk, through kill -9 and power loss: a record that was put stays until it is put
// again or deleted. The commits of all callers share writes and syncs.
//
// It never looks into a record, never blocks a caller of Commit, and never repairs damage: it refuses to open, and names
// the file.
//
// It is a log in segments (package wal) and an index in memory. journal.go has groups of commits, each of which is one frame of the log, and
// compaction: when most of the log is dead, the live records of the oldest segment are copied to the
// end, and the segment is removed. So disk space and the time to start are bounded by what is live. load.go has the format,
// and reading. apply.go makes a journal a copy of another one.
package journal
