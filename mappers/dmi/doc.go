// SPDX-License-Identifier: Apache-2.0

// Package dmi serves mappers that were written for KubeEdge: it is the device manager that they register with (their Device Mapper
// Interface, DMI, v1beta1 and v1alpha1), and drives their devices through them. Each mapper of KubeEdge that registers becomes a mapper of the
// node, with the SDK's rules for values, refusals and devices that are offline.
//
// It never speaks a device's protocol, and sends a mapper nothing that didn't change.
//
// # Files, in reading order
//
//	schema.go   KubeEdge's messages: the numbers of their fields, and how JSON becomes one of them
//	form.go     a Device and its model as KubeEdge's dialect shows them, made a message
//	reports.go  what mappers send, read
//	server.go   the device manager's service
//	bridge.go   which mappers have registered, on disk, and a mapper of the SDK for each
//	peer.go     a mapper of KubeEdge: what it was told of each device
//	driver.go   the SDK's driver of a peer's devices
//	command.go  the program mapper-dmi
//
// # Where to add
//
//   - a field of KubeEdge's messages: the tables in schema.go.
//   - a version of the interface: a contract in schema.go, and its forms in form.go.
package dmi
