// Package wal is a log on disk, in segments: a frame that was appended stays, through kill -9 and power loss, until the
// owner retires its segment. A frame that a crash has torn was not confirmed to anybody, and is dropped.
//
// It never looks into a frame, never decides that a segment isn't needed, and never repairs damage: it refuses to open, and
// names the file.
//
// wal.go appends; confirmed.go records where the log ended, so that a lost end is missed; reserve.go has what a full disk is left for; read.go has the format, and reading.
package wal
