// SPDX-License-Identifier: Apache-2.0

// Package rules carries out KubeEdge's Rules: requests to the hub that become messages on a node's broker or requests to a service of a node's host, and
// messages of a node's broker that are sent to an HTTP server.
//
// A message for a node is stored before it is accepted, and waits for the node; messages of one node go in the order in which they were accepted. A request to a service is never
// stored, and has a deadline. What comes from nodes waits in the broker's link queue until the server has it, in order for each Rule.
//
// # Files, in reading order
//
//	rules.go       Options, the Engine, what runs
//	active.go      a Rule that acts, and which one a path or a topic is for
//	controller.go  from objects to active Rules, what nodes are told, conditions and counts
//	serve.go       requests to the hub
//	calls.go       what nodes are asked, and their answers
//	messages.go    messages that wait for nodes
//	forward.go     messages of nodes that wait for servers
//
// # Where to add
//
//   - a pair of endpoints: what is possible, in topics/resource/rule.go; what it does, in serve.go or forward.go
package rules
