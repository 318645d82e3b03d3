// SPDX-License-Identifier: Apache-2.0

// Package client is a client of the hub's HTTP API: it lists the kinds that the hub serves, and gets, lists, watches, creates,
// applies, edits, patches and deletes objects of any kind. The command edgebus and tests use it.
//
// It never needs to know a kind in advance: it uses those that the hub lists. It keeps no other state, and never prints.
//
// # Files, in reading order
//
//	client.go   Options, Client: requests, answers, errors in plain words
//	objects.go  kinds, objects, lists and watches
//	apply.go    manifests: what an apply changes
//	edit.go     writes that depend on what was read
//	invite.go   invitations of nodes
//
// # Where to add
//
//   - a reason why there is no answer: explainNetworkError (client.go).
//   - a write: objects.go; one that reads first: PatchIf (edit.go).
package client
