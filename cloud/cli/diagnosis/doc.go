// SPDX-License-Identifier: Apache-2.0

// Package diagnosis says what is wrong with a node and what to do, by facts: edgebus doctor asks hub, core and broker for them, and the hub
// itself, for its page and for who asks it, has its own.
//
// It asks nobody, and changes nothing: checks are pure functions of facts, but for the current time.
//
// # Files, in reading order
//
//	facts.go      Facts: the answers of hub, core and broker
//	diagnose.go   check, the lists of checks, and what the findings come to: of one node, or of all
//	finding.go    findings, and how they are printed
//	check_*.go    a check each
//	cluster.go    several hubs that have a log in common
//
// # Where to add
//
//   - a check: a file check_….go with a function of the type check, its name in one of the lists (diagnose.go), and rows in
//     TestEachFaultHasAFindingWithAdvice.
//   - a fact that a check needs: a field of Facts, and collectFacts and collectAllFacts (cloud/cli/doctor/facts.go).
//   - what a program reports of itself: resource.LinkReport, in topics/resource.
package diagnosis
