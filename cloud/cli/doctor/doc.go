// Package doctor is edgebus doctor: it asks hub, core and broker, and says what is wrong with a node and what to do.
//
// It never changes anything. What is asked and what follows from the answers are apart: checks are pure functions of facts, but for the
// current time.
//
// # Files, in reading order
//
//	doctor.go     the command
//	facts.go      facts: the answers of hub, core and broker
//	diagnose.go   check, the lists of checks, and what the findings come to: of one node, or of all
//	finding.go    findings, and how they are printed
//	check_*.go    a check each
//
// # Where to add
//
//   - a check: a file check_….go with a function of the type check, its name in one of the lists (diagnose.go), and rows in TestDiagnosis.
//   - an answer that a check needs: a field of facts, and collectFacts and collectAllFacts (facts.go).
//   - what a program reports of itself: resource.LinkReport, in topics/resource.
package doctor
