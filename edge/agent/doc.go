// SPDX-License-Identifier: Apache-2.0

// Package agent is the program edgeagent: it makes a node's host what the node's spec says, whole or not at all, and reports
// what has become of it. It is an MQTT client of the node's broker, and works on with what it has while there is none.
//
// It never has a shell read anything, never runs a command that the node's own configuration doesn't list, never writes outside
// the configured directories, and tries a version again that has failed only if the host's files were the cause, or if it is asked to.
//
// # Files, in reading order
//
//	agent.go     Options; the agent, its life, and what it does between updates: drift, optional applications
//	state.go     what is on disk, what is reported besides it, and how both are changed
//	update.go    an update, step by step: what is on disk before each, and what follows from its outcome
//	osswitch.go  another OS image, the reboot into it, and the way back
//	windows.go   the times at which a spec may be downloaded and applied
//	retry.go     when a version that failed is tried again
//	hooks.go     commands that the node allows, and the hooks that run them
//	report.go    what the cloud sees
//	bus.go       the connection to the node's broker: the spec, Secrets, orders of upgrades, blobs
//	command.go   the command line
//
// # Packages, in reading order
//
//	files  brings files, directories and links to what a spec says
//	host   applications, the OS image, and what is observed
//
// # Where to add
//
//   - a step of an update: its constant, nextStep and agent.takeStep (update.go); what it needs after a kill is a field of specUpdate.
//   - a condition that the agent reports: liveStatus (state.go), and agentConditions (report.go).
//   - a command of edgeagent: newCommand (command.go).
package agent
