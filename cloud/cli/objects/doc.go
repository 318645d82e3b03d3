// SPDX-License-Identifier: Apache-2.0

// Package objects has the commands for objects of any kind: get, watch, describe,
// events, wait, explain, kinds, apply, create, diff, edit, label, annotate, delete and export.
//
// It never knows a kind that the hub doesn't list; what it knows of Devices and Nodes only adds to what is printed.
//
// # Files, in reading order
//
//	ref.go        KIND [NAME…] on a command line and in completion, and kinds
//	get.go        get: tables, documents, names
//	jsonpath.go   -o jsonpath and --sort-by of get
//	watch.go      watch, and get -w: which values of an object have changed
//	describe.go   describe
//	events.go     events
//	explain.go    explain: the schemas that the hub serves
//	manifest.go   files with manifests, and the order in which they are applied
//	selection.go  which objects a command is about: names, manifests, labels
//	wait.go       wait
//	dryrun.go     the flag --dry-run
//	apply.go      apply and create
//	diff.go       diff
//	edit.go       edit
//	label.go      label and annotate
//	delete.go     delete
//	export.go     export
//	checkuns.go   check uns
//
// # Where to add
//
//   - a command on objects: a file here, with parseTargets for its arguments, and its name in Commands (ref.go).
//   - a kind that others need when they are applied: its rank (applyRanks, manifest.go).
//   - a field of a status that is no news in a watch: volatileFields (watch.go).
package objects
