// SPDX-License-Identifier: Apache-2.0

// Package cluster is one of several hubs that have a log in common: one of them owns it, and the others stand by, each with a copy of all that is in it.
//
// Who owns the log is said in the log alone. A hub takes it with a frame at the position up to which it has read, when it has read none for a while; so
// the one before can append no more, whatever it believes. An append of which nobody knows whether it succeeded is made again at the same position until it
// is refused or taken: one of them is in the log at most, and what is there is read then. Until then nobody is answered.
//
// Who owns the log is decided by no other clock than the host's own, which goes on while the host sleeps. Frames have the time of day of who wrote them: it
// doesn't go back when another hub takes the log, whose clock has to agree with those of most others. The package knows nothing of what a hub does.
//
// # Files, in reading order
//
//	frame.go    what is in a frame, and the version of records
//	records*.go by how much a program is of the next version
//	member.go   Member: it owns the log or stands by; how it appends
//	standby.go  how it follows the log, and takes it
//	hubs.go     what hubs tell each other of themselves
//	walltime.go the time of day: whose clock is good enough, and that it doesn't go back
//	clock_*.go  the clock
//
// # Where to add
//
//   - a kind of frame: frame.go, and what a standby does with it in standbyRun.apply. RecordsVersion rises with it, and it is written once the log is of that
//     version: Member.Records.
//   - what ends an ownership: it calls Member.Lose.
package cluster
