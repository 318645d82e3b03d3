// SPDX-License-Identifier: Apache-2.0

// Package storetest is what every backend of the store must pass. A backend's
// own tests are for what only it has: its file, its failures.
//
// # Files, in reading order
//
//	storetest.go  Run, and what a test has to work with
//	objects.go    objects: create, update, delete, list, pages, conflicts, restarts
//	watch.go      watches: order, resuming, slow watchers
//	derived.go    statuses that are derived, and not stored
//	replicas.go   the copies of the nodes' maps
//	model.go      the store beside a map, with operations drawn at random
//
// # Where to add
//
//   - a promise of the store's interface: a test in the file of its subject, and its line in Run.
//   - what only one backend has: that backend's own tests.
package storetest
