// SPDX-License-Identifier: Apache-2.0

// Package runner runs the views of a hub or node: it tells them of the tree's devices, and does what they want done, at the tree's own broker
// or at any other.
//
// What a view wants of the tree is done as the user view-{name} of the tree's own broker, with that user's rights, and is in the audit log. A
// peer that is slow, or away, gets the last value of each property when it can take it: nothing queues for it but events.
//
// # Files, in reading order
//
//	runner.go      Views: all of them, what they are made from, what is told of them
//	inbox.go       what the tree has published and a view was not told yet
//	peer.go        one view at one peer: its connections, one after the other
//	session.go     one connection of it
//	past.go        what a Device's properties were
//	record.go      what is on disk: which view has published where, and how many connections it had
//	leftovers.go   what is cleared of views that were switched off, or moved to another peer
//
// # Where to add
//
//   - a view: its package beside this one, its settings in package configs, and its case in package settings beside this one
//   - an event or action: package views, and session.do for an action
package runner
