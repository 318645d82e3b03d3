// SPDX-License-Identifier: Apache-2.0

// Package upgrade tries upgrades of a node with real programs: a hub, and an agent that runs the core. What the node's broker would bring
// the agent, orders and contents, the test brings at a broker of its own.
//
//	rig_test.go        the node: its hub, its broker, bundles, and what it reports
//	upgrade_test.go    orders that succeed, fail, are refused, and are interrupted
//	away_test.go       clients of the core while it is started again
//	downloads_test.go  many nodes that download at a time
//	load_test.go       there and back under load: what either side has acknowledged both have in the end
package upgrade
