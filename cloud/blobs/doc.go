// SPDX-License-Identifier: Apache-2.0

// Package blobs keeps large contents, such as files of nodes and artifacts of upgrades, once in the hub by their SHA-256,
// however many nodes' specs refer to them. It serves them over HTTP (http.go) and, in ranges, to the cores of nodes
// (serve.go). The contents are files below the data directory (store.go).
//
// It never keeps a content in memory, never changes one, and never decides what is referred to: its users tell it.
package blobs
