// SPDX-License-Identifier: Apache-2.0

// Package backup is the commands that maintain a program's data directory: check and restore, while the program is stopped, and
// backup and rotate-key, which ask the program if it runs. The program says what it keeps there; the archive's format and
// the rule that nothing is overwritten are the same for all programs.
//
// It never repairs anything: damaged data is named, and has to be restored from a backup or deleted.
//
// # Files, in reading order
//
//	backup.go   the commands, and restore step by step
//	archive.go  the file: a tar of the data with a checksum of each file
//	running.go  the socket at which a running program gives its own backup, and tells its state
//	owner_*.go  whom restored files belong to
//
// # Where to add
//
//   - a store of a program: its files are in every backup by themselves; what tells whether they are damaged is a DataPart of Program.Survey.
//   - what must not be in backups: isData in archive.go.
package backup
