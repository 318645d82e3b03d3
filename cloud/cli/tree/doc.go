// SPDX-License-Identifier: Apache-2.0

// Package tree follows a node's topics at a broker (follow.go), and draws them (view.go).
//
// It never has more than the state: streams, commands and the link's own topics are left out.
package tree
