// SPDX-License-Identifier: Apache-2.0

// Package peer has the hubs of a cluster reach each other: one connection between two of them, with TLS in both directions, carries any number of
// streams, each for a named purpose (peer.go). One purpose is its own: requests over HTTP that another hub got are answered by the owner, with the client's
// identity (forward.go).
//
// A hub that stands by keeps a connection to the one that owns the log, whose address is in the log. Either of the two opens streams over it. It knows
// nothing of the log but who owns it.
package peer
