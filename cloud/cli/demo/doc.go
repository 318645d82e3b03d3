// SPDX-License-Identifier: Apache-2.0

// Package demo is edgebus demo: a hub, a node, its mappers and two simulated devices on one machine, and a screen with keys to try
// what happens when the link is cut or the node is killed.
//
// It never links hub or core: it runs the programs, and looks at them as any client does.
//
// # Files, in reading order
//
//	demo.go           the command, from start to the last clean-up
//	plan.go           which programs run, at which addresses, and when one is ready
//	past.go           what the devices are made to have reported before
//	processes.go      programs that are started again when they end; system_*.go: what only some systems have
//	join.go           the samples, and how the node joins the hub
//	hints.go          commands to try next
//	screen.go         values of hub and node side by side, and the keys; frame.go: how that is drawn
//	proxy.go          the network between node and hub, which can be cut
//	cluster.go        edgebus demo cluster: three hubs and three NATS servers, to kill them; clusterplan.go: how they are set up
//	clusterload.go    what goes through them, and is counted
//	clusterstate.go   which hub serves, and the way to it; clusterscreen.go: how all of it is shown
//
// # Where to add
//
//   - a program: demo.plan (plan.go).
//   - a key: demoScreen.handle (screen.go) and demoScreen.foot (frame.go).
//   - a key of edgebus demo cluster: clusterDemo.press (cluster.go).
//   - a sample: configs, Samples.
package demo
