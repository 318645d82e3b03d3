// SPDX-License-Identifier: Apache-2.0

// Package upgrade is the part of edgeagent that replaces the node's core, and the agent itself, by another version, gives the core other settings,
// and returns to what was before if the core does not work with it. It fetches and verifies what is ordered, switches to it, observes the core on
// trial, and commits or rolls back. It also has images pulled.
//
// It never changes the core's data, except that it puts a backup back where the old core can't open it; it never runs a program that isn't
// signed by a key of the node's own settings, or that these don't list; it never changes a setting of the core that these don't list; and it never
// tries an order again that has failed.
//
// # Files, in reading order
//
//	steps.go      the table of the steps: the effect of each, what it does, and what comes after each of its results
//	upgrade.go    Options; Upgrader: its life, and an order until it is an upgrade
//	journal.go    the state on disk, which is all that a new process of the agent needs to go on, and what is reported
//	orders.go     what differs between orders of a version, of settings and of images
//	order_*.go    orders of a version, and of settings
//	fetch.go      programs from the hub, from servers and from registries
//	versions.go   the directory of versions, the links into it, and the checks of programs
//	minisign.go   signatures
//	hold.go       what the owner of the node says about upgrades, on the node
//	core.go       how the core is run: by systemd, or by the agent
//	trial.go      when a core is well, its backup, and its data
//	services.go   other services that run programs of the version
//	replace.go    how the agent replaces itself
//	probation.go  an upgrade that is over, whose core may still lose the hub
//	sys_*.go      system calls, and systems that don't have them
//
// # Where to add
//
//   - a step: a row of stepTable with its function (steps.go); steps_test.go holds the table against what it promises.
//   - a kind of order: orderKind (orders.go).
//   - a reason to roll back: coreControl.observe (trial.go), with a constant of topics/resource.
package upgrade
