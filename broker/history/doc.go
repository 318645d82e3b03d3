// SPDX-License-Identifier: Apache-2.0

// Package history keeps what the properties of devices were: the same on a node, which records it, and on the hub, which copies it.
//
// It never keeps a sample of a device that its user doesn't name, never serves a file that isn't as it was written, and never waits for
// the disk where values are reported.
//
// # Packages
//
//	chunk     numbers and texts with their times, encoded
//	requests  who asks what a property was
//
// # Files, in reading order
//
//	samples.go  a sample, and how it is encoded
//	log.go      a log: what was recorded since the last full hour, a block a minute
//	file.go     a file: an hour, series by series; what becomes of a log
//	store.go    Store: recording, writing, room
//	rewrite.go  thinning and deleting
//	query.go    reading, and plots
//	copy.go     a copy that follows a store, as the hub has one of each node's
//	rules.go    what is not to be kept, and metrics
//
// # Where to add
//
//   - another form of samples: form and decodeChunk (samples.go), and plot.answer (query.go).
//   - what is done with the oldest: Store.fit (store.go).
//   - a figure for metrics: Stats (store.go), AddMetrics (rules.go), and configs/deploy/monitoring.yaml.
package history
