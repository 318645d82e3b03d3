// SPDX-License-Identifier: Apache-2.0

// Package render makes what nodes are told of what their Nodes' specs say: every reference resolved, every file with its
// path, mode, owner and content. What is rendered is a record in the store, RenderedSpec, which package cloud/twin sends to the
// node.
//
// It never sends anything to a node, and no value of a Secret is in what it writes. Render is a pure function; Controller
// reads what it needs, calls it and writes the outcome.
package render
