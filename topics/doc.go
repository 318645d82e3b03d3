// SPDX-License-Identifier: Apache-2.0

// Package topics is the contract of the bus as data: what each topic below v1/ means, which side owns it, and which roles may
// use it (table.go). It also parses, formats and matches topics.
//
// It never does I/O, knows no broker, and imports only the standard library. To add a topic, add a Kind and a row to the
// table: the parser, the ACL, the AsyncAPI documents and the tables in docs/mqtt.md follow from it (`make golden`).
//
// # Packages, in reading order
//
//   - topics itself: table.go has the contract, topics.go parses and matches, parts.go cuts large documents
//   - resource: the nouns of the bus as Go types
//   - link: the protocol that keeps the two copies of a node's maps in step
//   - dialect: the kinds of KubeEdge, flightctl and Akri, and their conversion; dialect/fit compares JSON with Go types
//   - acl: rules for users' own topics, as mosquitto's acl_file has them
//   - limits: what a broker and its clients may hold
//   - password: hashes of passwords
//   - sparkplug: payloads of Sparkplug B
//   - schedule: windows of time in which nodes may be updated
//   - backoff: how long to wait before something that failed is tried again
//   - trace: the form in which a trace goes from program to program
//
// # Where to add
//
//   - a topic: a Kind and a row (table.go)
//   - a role: Role and the rows that it may use (table.go)
//   - a user property of an answer: beside PropCode (table.go)
package topics
