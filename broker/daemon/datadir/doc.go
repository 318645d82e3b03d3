// SPDX-License-Identifier: Apache-2.0

// Package datadir makes a program's data directory, locks it for one process at a time, and notices when it is removed or
// replaced while it is in use.
//
// It never reads what is in the directory: file names alone say whose data it is.
//
// # Files, in reading order
//
//	datadir.go    Open, Lock and OpenReadOnly, and the watch over a directory in use (lock_*.go: how a file is locked)
//	owner_unix.go whose the files are, and owner_other.go
//	write.go      a file that is written whole or not at all
//	confirmed.go  how far a store had come when it last acknowledged something
//	space.go      how much of the disk is free (space_*.go: as the system says it)
//
// # Where to add
//
//   - a file that a program keeps: write it with WriteFile or SyncDir, so that it outlives a power cut.
//   - a program with a data directory of its own: a line in markerFiles, so that no other takes its data for its own.
package datadir
