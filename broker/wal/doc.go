// SPDX-License-Identifier: Apache-2.0

// Package wal is a log on disk, in segments: a frame that was appended stays, through kill -9 and power loss, until the
// owner retires its segment. A frame that a crash has torn was not confirmed to anybody, and is dropped.
//
// It never looks into a frame, never decides that a segment isn't needed, and never repairs damage: it refuses to open, and
// names the file.
//
// # Files, in reading order
//
//	wal.go        a Log from outside: frames are appended, segments begun and retired
//	segments.go   which segments there are, and the one that is read from
//	read.go       the format of segments and frames, the check of them at the start, and reading
//	reserve.go    room that is left for what makes a full disk emptier
//	ordered.go    the log as an engine of package ordered: appends after a position, and reading on
//	confirmed.go  where the log ended, beside it, so that a lost end is missed
//	sync_*.go     how a file is synced and given room
//	lock_*.go     one process at a time
//
// # Where to add
//
//   - a field of a segment's header: segmentHeader (read.go)
//   - a check at the start: Log.scan (read.go) for one segment, Log.Begin for all of them
//   - what may be written on a full disk: its caller uses Log.AppendReserved (reserve.go)
package wal
