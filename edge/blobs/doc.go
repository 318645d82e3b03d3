// Package blobs downloads contents from the hub by their SHA-256, for the node's agent, over a connection of its own: in
// ranges (download.go), in an amount that hardly delays other messages on a slow link (flow.go), into files that outlive
// restarts of both sides (files.go). The agent requests a blob on the node's broker (serve.go).
//
// It never shows a file before its digest was verified, and never reads what is in it.
package blobs
