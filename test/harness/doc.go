// SPDX-License-Identifier: Apache-2.0

// Package harness runs the real programs for tests: it gives each test a world of its own (ports, directories, a
// network that can fail), starts, stops and kills the programs, and leaves no process behind.
//
// It never builds the programs, and never links hub, core or mappers: what a test sees is what a user would.
//
// # Files, in reading order
//
//	world.go     a hub with nodes around it: start, stop, freeze and kill their programs
//	process.go   one program in a process group of its own (group_*.go)
//	programs.go  where the programs are, and free ports
//	script.go    what a script of testscript can say
//	mqtt.go      an MQTT client's view: publish, and await what a topic holds
//	api.go       the hub's API
//
// # Where to add
//
//   - a word for scripts: a function in script.go, and a line in test/e2e/README.md.
//   - a program: command in world.go.
package harness
