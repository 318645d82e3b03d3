// SPDX-License-Identifier: Apache-2.0

// Package mirror has the objects of the hub that serves at one that stands by, a kind each, so that it can answer lists and watches itself.
//
// It never decides who may read what. A mirror has what its owner's store had at one revision, and says which.
//
// # Files, in reading order
//
//	feed.go  Feed: what the owner tells of a kind, first its list and then its changes
//	set.go   Set: what a hub that stands by has of that; it waits until it has what the owner has by now
//
// # Where to add
//
//   - a rule of which requests are answered from a mirror: cloud/api/mirrored.go.
package mirror
