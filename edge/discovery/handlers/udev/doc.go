// SPDX-License-Identifier: Apache-2.0

// Package udev is the discovery handler udev, as Akri has it: it finds devices of the host by rules in the grammar of udev's match
// keys, in sysfs and in udev's database. It looks again at each event of the kernel or of udevd, and now and then without one.
//
// It never opens a device, and reads no attribute that a rule doesn't name.
//
// # Files, in reading order
//
//	udev.go      the handler: details, when it looks, groups of devices
//	rule.go      rules, and whether a device matches one
//	sysfs.go     devices, their attributes and properties
//	events_*.go  the kernel's events
//
// # Where to add
//
//   - a key of rules: matchKeys and ruleTerm.match (rule.go), device.value (sysfs.go).
//   - a field of the details: details (udev.go).
package udev
