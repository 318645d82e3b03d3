// SPDX-License-Identifier: Apache-2.0

// Package modbus drives Modbus devices, over TCP and on serial lines: coils, discrete inputs, holding and input registers, and the values
// that vendors make of them. Units behind one address, and those on one serial line, share a connection, which makes one request at a
// time.
//
// A Device's protocol config, and with it its model's, says where the device is and how it is to be treated: see deviceConfig. A
// visitor's says which register, and what it means: see registerField; or which point of SunSpec. The package never guesses at a configuration: what it
// can't understand is refused with the path of the field. It never repeats a write by itself.
//
// What a device can't do is found out where that is safe, told with the setting that makes it last, and doubted once a day: how many
// registers it answers at once and where there are holes between them (group.go), which function it writes with (session.go), and how its
// connection is to be treated (bus.go).
//
// # Files, in reading order
//
//	modbus.go    Driver
//	config.go    the configuration of a device
//	settings.go  the table of settings
//	register.go  the configuration of a property, and its value in registers
//	group.go     which registers are read in one request
//	session.go   a unit: reads, writes
//	bus.go       a connection that units share
//	sunspec.go   properties that are points of SunSpec, and how a device's models are found
//	sunspecmodels.go, sunspecimage.go
//	             the models, and those of the simulated device
//	simulate.go  a simulated device
//	habits.go    how it misbehaves
//	scan.go      the commands read and scan
//	program.go   the program mapper-modbus
//
// # Packages
//
//	wire  the protocol itself, both sides
//
// # Where to add
//
//   - a setting of devices: config.go; of properties: register.go.
//   - a habit that a device must be borne with: habits.go, and a row in habits_test.go; drivertest_test.go has those of all protocols.
package modbus
