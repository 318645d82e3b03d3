// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

// Command bench measures the bus with its real parts and prints a report in
// Markdown. Every figure stands beside its alternative or its physical limit,
// measured in the same run, for a machine's speed means nothing by itself.
//
// # Files, in reading order
//
//	main.go           the sections of the report
//	mosquitto.go      brokers in processes of their own: ours, and mosquitto beside them
//	wire.go           MQTT without a library, which would be what is measured
//	generator.go      traffic of many clients on one core
//	pump.go           one publisher that costs next to nothing
//	cpu.go            processor time of processes
//	devices.go        the devices and models that sections use
//	broker.go         the broker beside mosquitto
//	durable.go        property updates that are on disk
//	written.go        what reaches the disk for a change (writtenreports.go: for a report)
//	roundtrip.go      from a desired value to the reported one
//	offline.go        messages for a session whose client is away
//	idle.go           idle connections
//	victims.go        clients that behave, for neighbours.go and attacks.go
//	neighbours.go     what they notice of floods
//	pages.go          what they notice of open pages
//	views.go          what a view costs a hub
//	attacks.go        what they notice of whoever holds one credential, or none
//	hubmemory.go      what a reported key costs a hub
//	objects.go        a hundred thousand Devices (objectsdata.go, objectsload.go; objectsstore.go: the store by itself)
//	reconnect.go      how long both sides take to agree again (reconnectmany.go: all nodes at once)
//	rollout.go        a fleet's template on its way to the nodes
//	cluster.go        three hubs with one log (clusterfigures.go: beside one hub on files; clusterlarge.go: with many Devices and nodes)
//	mirrors.go        lists and watches at a hub that stands by
//	cloudaway.go      what a node notices of its cloud
//	streams.go        telemetry
//	polls.go          devices that mappers poll (pollpeers.go: the devices)
//	past.go           a node that reports for long, and what the hub has of it
//	pastmany.go       many nodes that report 10,000 values a second
//	beforeafter.go    the hub beside one of an earlier version
//	footprint.go      sizes and memory of the programs
//
// # Where to add
//
//   - a section: a function measure… in a file of its own, a line of benchSections in main.go, and its text in docs/benchmarks.md.
//   - a figure always stands beside its limit or alternative, measured in the same run.
package main
