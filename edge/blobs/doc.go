// SPDX-License-Identifier: Apache-2.0

// Package blobs downloads contents from the hub by their SHA-256, for the node's agent, over a connection of its own.
//
// It never shows a file before its digest was verified, and never reads what is in it.
//
// # Files, in reading order
//
//	serve.go     requests of the agent on the node's broker, and metrics
//	download.go  Downloads: in ranges, one after another, by one goroutine
//	flow.go      how much is requested at a time, so that other messages on a slow link are hardly delayed
//	files.go     the files, which outlive restarts of both sides, and the room for them
//
// # Where to add
//
//   - a reason not to take a request: Downloads.take (download.go).
//   - what is removed first when there is no room: blobFiles.evict (files.go).
//   - a metric: Stats (download.go) and Register (serve.go), and configs/deploy/monitoring.yaml.
package blobs
