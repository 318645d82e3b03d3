// SPDX-License-Identifier: Apache-2.0

// Package mappers is the SDK for mappers: it finds a mapper's devices on the node's broker, reads and reports their values,
// writes desired values to them, announces the mapper's presence and retries. A driver adds the protocol: it implements
// Driver, and its main calls Run. Begin with driver.go.
//
// It never talks to the cloud and stores nothing on disk: a mapper is an MQTT client of the node's broker, and learns from its
// own retained reports which values it has applied. Its memory doesn't grow with time: it keeps the latest value of each
// topic, and has one goroutine for each bus.
//
// Run promises of a desired value:
//   - It is written at most once for each version, and at most once more for each restart of the mapper and each new
//     configuration of the device; never an older value after a newer one. A device that has lost the value while it was
//     away, for example after a power failure, gets it again or the value is refused, as the property's atBoot says. After
//     a new configuration the device is read, and written if its value differs.
//   - A property that can be read is compared before a value is written again, and read back after it was written until it has the value,
//     for as long as the visitor's confirmWithin. What can't be read back is never written again: the value is refused as Lost.
//   - A value that can't be applied is refused on the topic refused/{property}. If it could not be applied because the
//     device was away, it is tried again for as long as it is desired.
//
// And of devices:
//   - A device is online while it answers anything. What fails is the request that failed, and is made once more on a fresh
//     connection before anything is said. What is said has lasted.
//   - Requests to the devices of a bus take turns: what is slow, busy, dead or unconfirmed takes nothing with it.
//   - A value that can't be understood, or is too old, is no value.
//
// # Files, in reading order
//
//	driver.go    what a driver implements, and the checks that are the same for all (Opened)
//	options.go   what Run is told
//	run.go       Run, the messages of the broker, and which worker has which device
//	setup.go     what is asked of the core about each device: does it exist, and what was reported of it?
//	device.go    the state of a device and its properties, and the decision what to do about a desired value: no calls of the driver
//	worker.go    the goroutine of a bus: whose request is the next
//	contact.go   whether a device answers, and what is said about it
//	limit.go     how much a device takes in one request
//	read.go      which properties are read in one request, and what becomes of those that were not
//	drive.go     the steps that device.go decides on, with the driver
//	words.go     what a device says, translated: its words, and what it says when it has no value
//	report.go    what is published of a device: values, states, problems and refusals
//	commands.go  commands: requests to a device with an answer
//	events.go    events: what a device tells once
//	eventqueue.go  events that wait for the broker
//	outbox.go    the latest value of each topic, until the broker has it
//	health.go    whether the mapper of another process is connected
//	bench.go     devices without a broker, for tests of drivers
//	drivelog.go  a line for each write, for tests and audits
//
// # Packages, in reading order
//
//	cmd         a program of a driver: flags, settings, version
//	settings    the config of Devices and visitors, with errors that name the field and the rule
//	jsonpath    values in JSON that devices send
//	drivertest  the tests that every driver passes
//	virtual     simulated devices
//	modbus      Modbus over TCP and on serial lines
//	mqtt        devices that speak MQTT themselves
//	bacnet      BACnet/IP
//	opcua       OPC UA
//	snmp        SNMP
//	http        devices with an HTTP interface
//	dmi         devices of mappers that were written for KubeEdge
//	examples    a mapper in shell, without this package
//
// # Where to add
//
//   - a driver: a package of its own (`edgebus new-mapper` writes one, example_test.go is one), and its tests with drivertest.
//   - something that some drivers can do: an optional interface in driver.go, and the call in worker.go.
//   - a rule about desired values: plan in device.go, and a row in plan_test.go.
package mappers
