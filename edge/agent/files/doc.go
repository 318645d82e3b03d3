// SPDX-License-Identifier: Apache-2.0

// Package files brings a list of a host's files, directories and links to what a rendered spec says, whole or not at all: after a
// kill or a power cut at any moment, Recover makes the old version or the new one of what is there.
//
// While it is being swapped, and between a kill and the next Recover, the host has files of both: each file is that of one version,
// whole, and no path that both versions have is ever missing.
//
// It never follows a symbolic link, and changes nothing outside the allowed directories but files of its own beside those that it
// changes (.edgebus-…). It runs no commands, and fetches nothing.
//
// An update is Stage, Swap, and then Commit or RollBack. Stage writes the new contents beside their places, on the same file system.
// Swap keeps what is there under a second name and renames each new file into its place. Until Commit everything can be rolled
// back, also after a restart in between. Each phase is in the journal, synced, before it begins (journal.go).
//
// What was there before a spec named it is kept, beside it, and put back when no spec names it any more. A directory is removed
// when no spec needs it any more, if an update made it and it is empty. A file that is replaced hands its extended attributes on,
// SELinux's label among them, those that belong to its content excepted (capabilities, IMA); a new file has the label that the
// kernel gives to what is made in its directory. ACLs are extended attributes.
//
// The caller holds the lock on the data directory: there is one Store for it at a time.
//
// # Files, in reading order
//
//	files.go       Store: the phases of an update, and what Recover makes of an interrupted one
//	journal.go     the journal and the manifests on disk, and the checks of what is read from them
//	rules.go       which paths a spec may name, and what its entries have to be
//	plan.go        what there is to do: the operations that lead from what is there to a version
//	content.go     new contents, written beside their places
//	operations.go  operations done and undone
//	drift.go       what was changed by another program since
//	tree.go        the file system below a directory, on which no link is followed
//	sys_*.go       system calls, and systems that don't have them
//
// # Where to add
//
//   - a rule for paths or entries: pathRules (rules.go), with a Reason of resource.FailedVersion.
//   - a kind of operation: opKind (journal.go), updatePlan.rankOf (plan.go), hostOps.apply and undo (operations.go); crash_test.go
//     then kills it at each step.
//   - an attribute of files: fileAttrs (tree.go).
package files
