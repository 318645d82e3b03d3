// SPDX-License-Identifier: Apache-2.0

// Package discovery makes Instances of what nodes find for Configurations, and of Instances what their Configuration asks for: Devices,
// and containers of brokers on nodes.
//
// What it decides is in pure functions: PlanOrder (what nodes are to look for), PlanInstance, PlanDevice, BrokerApplication, and the conditions
// of a Configuration. It never talks to a node: a node gets an order and applications through records in the store, and what it has
// found comes from Options.Reports.
//
// # Files, in reading order
//
//	plan.go        what is decided: Orders, Instances with their slots, Devices of a template, conditions; all pure
//	brokercontainers.go     what a brokerSpec comes to on a node, as a quadlet unit; how brokers are, as conditions; pure
//	controller.go  the three controllers: of Configurations, of Instances with their Devices, of the applications of nodes
//	indexes.go     what is known of objects, and which of them concern each other
//	sightings.go   what nodes report: devices that they see, handlers; queues of keys that a report concerns
//	references.go  what a node with certain labels may get from Configurations
//
// # Where to add
//
//   - a field of a brokerSpec that nodes do: podSpec, supportedPodFields and quadletUnit (brokercontainers.go).
//   - a condition of a Configuration: controller.showConfiguration; its rule is a function of plan.go.
//   - another object that matters to an Instance: a Watch in Controllers (controller.go), and an index if it has to be found by another.
package discovery
